"""Build flags of our own (what skylib calls common_settings, in a few lines)."""

FlagValue = provider(doc = "The value of a flag.", fields = ["value"])

def _flag_impl(ctx):
    return [FlagValue(value = ctx.build_setting_value)]

bool_flag = rule(implementation = _flag_impl, build_setting = config.bool(flag = True))

# --//some:flag=a,b,c
string_list_flag = rule(implementation = _flag_impl, build_setting = config.string_list(flag = True))
