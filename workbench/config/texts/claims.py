"""False statements about Triton that stand in many texts, in Korean and English.

The list is short on purpose: a pattern must not fit a true sentence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from workbench.config.texts.source import Notes, Passage


@dataclass(frozen=True, slots=True)
class _Claim:
    rule: str
    pattern: re.Pattern[str]
    unless: re.Pattern[str]
    message: str
    title: str = ""
    change: str = ""  # what the group ``false`` becomes
    needs: re.Pattern[str] = re.compile("")  # found somewhere in the line


_POLL = r"[`*\"']*(?:MODE_)?POLL(?:ING)?[`*\"']*(?:[ -]mode| 모드)?[`*\"']*"
_NEVER = re.compile(r"(?!)")
_POLL_TEXT = "the default model control mode is none: models are loaded once, at the start (--model-control-mode)"
_ENSEMBLE_TEXT = (
    "an ensemble passes a request's priority and timeout to every step: a step orders "
    "by it where its own dynamic_batching declares priority_levels. The instance_group of a step's model counts too"
)

_CLAIMS = (
    _Claim(
        "claim-poll-default",
        re.compile(
            rf"{_POLL}\s*[:(은는이가—–-]+\s*(?P<false>기본값)(?!\s*(?:이|은|는)?\s*아[니님닙닌])", re.IGNORECASE
        ),
        _NEVER,
        _POLL_TEXT,
        "Say that it is not the default",
        "기본값 아님(기본은 none)",
    ),
    _Claim(
        "claim-poll-default",
        re.compile(rf"기본(?:값|\s*모드)?(?:은|는|이|인)?\s*:?\s*{_POLL}(?=\s|[.,)]|이|입|$)", re.IGNORECASE),
        re.compile("아니|아님|않"),
        _POLL_TEXT,
    ),
    _Claim(
        "claim-poll-default",
        re.compile(
            rf"(?<![\w-]){_POLL}\s*(?:\(|[:—–-]\s*|is |as )(?:the |by )?(?P<false>default)\b(?!ed| poll| interval)",
            re.IGNORECASE,
        ),
        re.compile(r"\bnot\b|n't", re.IGNORECASE),
        _POLL_TEXT,
        "Say that it is not the default",
        "not the default (none is)",
    ),
    _Claim(
        "claim-poll-default",
        re.compile(rf"\bdefault (?:model )?control mode is {_POLL}(?!\w)", re.IGNORECASE),
        re.compile(r"\bnot\b|n't", re.IGNORECASE),
        _POLL_TEXT,
    ),
    _Claim(
        "claim-auto-reload",
        re.compile(
            r"주기적으로\s*(?:Model Repository|모델 (?:저장소|리포지토리))(?:\([^)]*\))?를?\s*감시"
            r"|(?:Model Repository|모델 (?:저장소|리포지토리))(?:\([^)]*\))?를\s*주기적으로\s*감시",
            re.IGNORECASE,
        ),
        re.compile(r"poll|폴링", re.IGNORECASE),
        "only with --model-control-mode=poll; by default (none) Triton reads the repository once, at the start",
    ),
    _Claim(
        "claim-auto-reload",
        re.compile(
            r"\bby default,? (?:Triton |the server )?(?:polls|watches|monitors) the (?:model )?repository",
            re.IGNORECASE,
        ),
        re.compile(r"poll mode|control-mode", re.IGNORECASE),
        "only with --model-control-mode=poll; by default (none) Triton reads the repository once, at the start",
    ),
    _Claim(
        "claim-ensemble-priority",
        re.compile(
            r"(?:우선순위|priority)[^.:→]{0,45}?"
            r"(?:전파되지 않|적용되지 않|동작하지 않)",
            re.IGNORECASE,
        ),
        _NEVER,
        _ENSEMBLE_TEXT,
        needs=re.compile("ensemble|앙상블|step 모델|서브모델", re.IGNORECASE),
    ),
    _Claim(
        "claim-ensemble-priority",
        re.compile(
            r"\b(?:priority|priorities) (?:is|are) (?:not (?:propagated|passed|forwarded)|ignored) "
            r"(?:to|in|inside|within|by) (?:an |the )?(?:steps?|composing models?|ensembles?)",
            re.IGNORECASE,
        ),
        _NEVER,
        _ENSEMBLE_TEXT,
    ),
    _Claim(
        "claim-version-policy",
        re.compile(r"strict model versioning", re.IGNORECASE),
        _NEVER,
        "Triton has no such policy: version_policy is latest, all or specific, and a request without a version gets "
        "the highest one that is ready",
    ),
    _Claim(
        "claim-priority-zero",
        re.compile(
            r"priority (?:level )?0 (?:is|means|has) the highest|우선순위 ?0(?:이|은|번이)? (?:가장|제일) 높",
            re.IGNORECASE,
        ),
        re.compile(r"\bnot\b|n't|아니|않", re.IGNORECASE),
        "priority levels count from 1, and 1 is the highest; 0 stands for default_priority_level",
    ),
    _Claim(
        "claim-count-gpus",
        re.compile(r"모델 ?당 인스턴스 수는 `?instance_group\.count`?로", re.IGNORECASE),
        re.compile(r"GPU (?:당|마다|별)"),
        "on GPUs count is for each GPU of the group: count 2 with gpus [0, 1] makes 4 instances",
    ),
)  # fmt: skip


def check_claims(passage: Passage, notes: Notes) -> None:
    """The false statements in a line of prose."""
    for claim in _CLAIMS:
        match = claim.pattern.search(passage.text)
        if match is None or claim.unless.search(passage.text) or not claim.needs.search(passage.text):
            continue
        changes = [(*match.span("false"), claim.change)] if claim.change else ()
        notes.say(passage, claim.rule, match.span(), claim.message, claim.title, changes)
