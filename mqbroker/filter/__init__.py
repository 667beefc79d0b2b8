"""Filter expressions on message properties: the SQL92 subset of the Java system's filter module.

compile_expression("price > 10 AND region IN ('north', 'south')").matches({"price": "12", "region": "north"})
"""

from mqbroker.filter.sql92 import EXPRESSION_LENGTH_MAX, Expression, compile_expression

__all__ = ["EXPRESSION_LENGTH_MAX", "Expression", "compile_expression"]
