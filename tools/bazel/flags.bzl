"""Build flags of our own (what skylib calls common_settings, in four lines)."""

def _flag_impl(_ctx):
    return []

bool_flag = rule(implementation = _flag_impl, build_setting = config.bool(flag = True))
