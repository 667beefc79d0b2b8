"""How Spark finds the format "rocketmq": it looks into every package named pyspark_*. All else is in mqbroker.spark.

A package that cannot be imported ends Spark's search, and it names no cause. So this one can always be imported: what
is missing is said by a source in place of the real one.
"""

from typing import Any, NoReturn

__all__ = ["DefaultSource"]


def _missing_source(error: Exception) -> type:
    """A source that refuses everything with what is missing, and how to install it."""
    try:
        from pyspark.sql.datasource import DataSource as Base
    except ImportError:
        Base = object  # noqa: N806 - a class
    import sys

    from pyspark import __version__ as version

    if isinstance(error, ImportError) and error.name is not None and not error.name.startswith("pyspark"):
        why = f'the format "rocketmq" needs the package {error.name.partition(".")[0]}, which {sys.executable} lacks'
    elif isinstance(error, ImportError):
        why = f'the format "rocketmq" needs another version than PySpark {version}: {error}'
    else:
        why = f'the format "rocketmq" cannot be loaded by {sys.executable}: {type(error).__name__}: {error}'
    todo = (
        "Install it with `pip install 'mqbroker[spark]'` for the Python of the driver and of the workers, which is "
        "PYSPARK_PYTHON, or ship a bundle (`python -m mqbroker.spark.bundle FILE.zip`) with --py-files"
    )

    def refuse(self: Any, *given: Any, **named: Any) -> NoReturn:
        # Not a class of ours, which may be what is missing.
        raise ImportError(f"{why}. {todo}")

    names = ("schema", "reader", "writer", "streamReader", "streamWriter", "simpleStreamReader")
    return type("MissingSource", (Base,), {"name": classmethod(lambda cls: "rocketmq"), **dict.fromkeys(names, refuse)})


try:
    from mqbroker.spark.source import RocketMQDataSource as DefaultSource
except Exception as error:  # whatever it is, Spark must find the other sources
    DefaultSource = _missing_source(error)  # type: ignore[misc,assignment]
