"""Which plugins an installation contains: --//:plugins=tcp,fifo."""

load("//tools/bazel:flags.bzl", "FlagValue")

def _plugin_set_impl(ctx):
    known = {name: target for target, name in ctx.attr.plugins.items()}
    selected = ctx.attr.selection[FlagValue].value
    files = []
    for name in selected:
        if name not in known:
            fail("--//:plugins names \"%s\"; known are %s" % (name, ", ".join(sorted(known))))
        files.append(known[name][DefaultInfo].files)
    chosen = depset(transitive = files)
    return [DefaultInfo(files = chosen, runfiles = ctx.runfiles(transitive_files = chosen))]

plugin_set = rule(
    implementation = _plugin_set_impl,
    doc = "The shared objects of the plugins that the flag `selection` names.",
    attrs = {
        "plugins": attr.label_keyed_string_dict(doc = "the shared object of each plugin, and its name"),
        "selection": attr.label(providers = [FlagValue]),
    },
)
