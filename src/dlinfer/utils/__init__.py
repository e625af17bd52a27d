"""Import names that serving frameworks fix; what they name is elsewhere in dlinfer wherever that is possible."""
