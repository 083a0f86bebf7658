"""A table with columns of several types, and a pipeline fitted on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

TABLE = pd.DataFrame(
    {
        "age": np.array([20, 31, 44, 55, 63, 29], np.int64),
        "income": np.array([1.5, 2.0, np.nan, 8.25, 3.0, 0.5], np.float64),
        "city": ["Bern", "Zürich", "", "Bern", "Genf", "Zürich"],
        "member": [True, False, True, True, False, False],
    }
)
BOUGHT = np.array(["no", "yes", "yes", "no", "yes", "no"])


def pipeline() -> Any:
    """What a newcomer writes: numbers imputed and scaled, a text column encoded, a classifier behind."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["age", "income"]),
            ("texts", OneHotEncoder(handle_unknown="ignore"), ["city"]),
            ("flags", "passthrough", ["member"]),
        ]
    )
    return make_pipeline(columns, LogisticRegression()).fit(TABLE, BOUGHT)


def by_column(table: pd.DataFrame) -> dict[str, Any]:
    """The table as a client sends it: a column is an input of one value a row."""
    texts = {"city": table["city"].to_numpy(object)[:, None]}
    return {name: table[name].to_numpy()[:, None] for name in table.columns if name != "city"} | texts
