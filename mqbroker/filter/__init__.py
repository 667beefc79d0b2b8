"""Filter expressions on message properties: the SQL92 subset of the Java system's filter module.

compile_expression("price > 10 AND region IN ('north', 'south')").pick([b"price\\x0112\\x02region\\x01north"], 1) == [0]
"""

from mqbroker.filter.sql92 import EXPRESSION_LENGTH_MAX, Expression, compile_expression

__all__ = ["EXPRESSION_LENGTH_MAX", "Expression", "compile_expression"]
