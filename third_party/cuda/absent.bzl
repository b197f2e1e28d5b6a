"""A target that cannot be built, and says why."""

def _absent_impl(ctx):
    fail(ctx.attr.message)

absent = rule(implementation = _absent_impl, attrs = {"message": attr.string(mandatory = True)}, provides = [])
