from ..common.operator_tests import checked_operator

test_operator = checked_operator(__name__)
