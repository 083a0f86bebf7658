"""A table (pandas) as inputs of a model: all columns in one, one for each column, or one for each data type.

Triton has no tables: an input has one data type. Clients that send what a form or a database has expect an input for
each column; those that send a matrix expect one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from workbench.errors import InvalidRequest
from workbench.package.tensors import Feed, as_array

if TYPE_CHECKING:
    import pandas as pd

Inputs = Literal["one", "columns", "dtypes"]
WAYS: tuple[Inputs, ...] = ("one", "columns", "dtypes")
ONE = "input"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its ``label`` in the table, the ``input`` that it is (or where in it, ``index``).

    ``categories`` are those of a categorical column.
    """

    label: str | int
    input: str
    index: int | None = None
    categories: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """How tables of one kind become inputs, and inputs tables. ``feed`` and ``frame`` are each other's reverse."""

    columns: tuple[Column, ...]

    @property
    def inputs(self) -> list[str]:
        """The inputs, in the order of the columns."""
        return list(dict.fromkeys(column.input for column in self.columns))

    def feed(self, table: pd.DataFrame) -> Feed:
        """The inputs of one request.

        Raises:
            InvalidRequest: the table has other columns, or something in it is no tensor.
        """
        if list(table.columns) != [column.label for column in self.columns]:
            raise InvalidRequest("every example is to have the same columns", where=f"{list(table.columns)!r:.200}")
        values: dict[str, list[NDArray[Any]]] = {}
        for column in self.columns:
            values.setdefault(column.input, []).append(_values(table[column.label], column.label))
        grouped = {column.input for column in self.columns if column.index is not None}
        return {
            name: as_array(name, np.stack(arrays, axis=1) if name in grouped else arrays[0])
            for name, arrays in values.items()
        }

    def frame(self, feed: Feed) -> pd.DataFrame:
        """The table of a request."""
        import pandas as pd

        found = {}
        for column in self.columns:
            array = feed[column.input] if column.index is None else feed[column.input][:, column.index]
            found[column.label] = pd.Categorical(array, list(column.categories)) if column.categories else array
        return pd.DataFrame(found)

    def source(self) -> str:
        """What ``frame`` does, as Python text."""
        if self.inputs == [ONE] and self.columns[0].index is not None:
            return f"table = pandas.DataFrame(feed[{ONE!r}], columns={[column.label for column in self.columns]!r})"
        lines = ["table = pandas.DataFrame({"]
        for column in self.columns:
            value = f"feed[{column.input!r}]" + ("" if column.index is None else f"[:, {column.index}]")
            if column.categories:
                value = f"pandas.Categorical({value}, {list(column.categories)!r})"
            lines.append(f"    {column.label!r}: {value},")
        return "\n".join([*lines, "})"])


def is_table(value: Any) -> bool:
    """Whether it is a table of pandas."""
    return type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "columns")


def plan(table: pd.DataFrame, how: Inputs | None) -> Table:
    """How a table becomes inputs; None is ``one`` where all columns have one data type, else ``columns``.

    Raises:
        InvalidRequest: a column has no name or no data type that a tensor has, or the columns do not go into one input.
    """
    labels = [label.item() if isinstance(label, np.generic) else label for label in table.columns]
    wrong = [label for label in labels if not isinstance(label, str | int) or isinstance(label, bool)]
    if wrong or len(set(map(str, labels))) != len(labels) or not labels:
        raise InvalidRequest(
            "the columns of the table need names of their own", where=f"{labels!r:.200}", hint="texts or numbers"
        )
    values = {label: _values(table[label], label) for label in labels}
    dtypes = {label: "text" if array.dtype == np.object_ else array.dtype.name for label, array in values.items()}
    categories = {label: _categories(table[label]) for label in labels}
    if how is None:
        how = "one" if len(set(dtypes.values())) == 1 and not any(categories.values()) else "columns"
    if how == "one" and len(set(dtypes.values())) > 1:
        kinds = ", ".join(f"{label}: {dtype}" for label, dtype in dtypes.items())
        raise InvalidRequest(
            f"an input has one data type, the table's columns have several ({kinds:.200})",
            hint="inputs='columns' (one for each column) or inputs='dtypes' (one for each data type)",
        )
    columns, counts = [], dict.fromkeys([*dtypes.values(), ONE], 0)
    for label in labels:
        if how == "columns":
            columns.append(Column(label, str(label), None, categories[label]))
            continue
        name = ONE if how == "one" else dtypes[label]
        columns.append(Column(label, name, counts[name], categories[label]))
        counts[name] += 1
    return Table(tuple(columns))


def _categories(series: Any) -> tuple[Any, ...]:
    return tuple(series.cat.categories.tolist()) if hasattr(series, "cat") else ()


def _values(series: Any, label: Any) -> NDArray[Any]:
    """A column's values, of a data type that a tensor has."""
    if getattr(series, "ndim", 1) != 1:
        raise InvalidRequest(f"the table has several columns '{label}'")
    kind = getattr(series.dtype, "kind", "O")
    if series.isna().any() and kind != "f":
        raise InvalidRequest(
            f"column '{label}' has missing values, which a tensor of {series.dtype} cannot say",
            hint="fill them in the examples as clients will send them (fillna), or make the column a float: NaN",
        )
    if kind in "mM":
        raise InvalidRequest(
            f"column '{label}' holds times ({series.dtype}): a tensor has no such type",
            hint="give numbers (seconds since 1970, say) and let the pipeline convert them",
        )
    if hasattr(series, "cat"):
        kind = getattr(series.cat.categories.dtype, "kind", "O")
        series = series.astype(series.cat.categories.dtype)
    if kind in "biuf":
        return np.asarray(series.to_numpy(dtype=getattr(series.dtype, "numpy_dtype", series.dtype)))
    found = series.to_numpy(dtype=object)
    bad = next((item for item in found if not isinstance(item, str | bytes)), None)
    if bad is not None:
        raise InvalidRequest(
            f"column '{label}' is neither of numbers nor of texts: {bad!r:.80}", hint="convert it before it is packaged"
        )
    return np.asarray(found)
