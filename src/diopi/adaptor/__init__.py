"""Rules (convert_config.yaml) applied at run time in front of any DIOPI library.

rules = read_rules("convert_config.yaml")
library = Library.open("libdiopi_impl.so", adaptor="convert_config.yaml")
for cost in library.adaptor.costs(): ...
"""

from diopi.adaptor.costs import Cost, merged, read_costs
from diopi.adaptor.rules import COMPOSITES, AdaptorRules, ArgumentRule, RulesError
from diopi.adaptor.yaml_rules import read_rules

__all__ = [
    "COMPOSITES",
    "AdaptorRules",
    "ArgumentRule",
    "Cost",
    "RulesError",
    "merged",
    "read_costs",
    "read_rules",
]
