"""Packs a Python wheel from files of any rule."""

def _wheel_impl(ctx):
    folder = ctx.actions.declare_directory(ctx.label.name)
    arguments = ctx.actions.args()
    arguments.add_all("--out", [folder], expand_directories = False)
    arguments.add("--name", ctx.attr.package)
    arguments.add("--version-from", ctx.file.version_from)
    arguments.add("--license", ctx.file.license)
    arguments.add("--readme", ctx.file.readme)
    arguments.add("--python-tag", ctx.file._python_tag)
    for name, entry in ctx.attr.entry_points.items():
        arguments.add("--entry-point", "%s=%s" % (name, entry))
    files = []
    for target, place in ctx.attr.contents.items():
        # "strip:place": what lies under `strip` (a folder of the repository) goes into `place` of the wheel.
        strip, destination = place.split(":")
        for file in target[DefaultInfo].files.to_list():
            path = file.short_path
            if strip and path.startswith(strip + "/"):
                path = path[len(strip) + 1:]
            else:
                path = file.basename
            arguments.add("--file", "%s/%s=%s" % (destination, path, file.path))
            files.append(file)
    ctx.actions.run(
        executable = "/usr/bin/python3",
        arguments = [ctx.file._packer.path, arguments],
        inputs = files + [ctx.file._packer, ctx.file.version_from, ctx.file.license, ctx.file.readme, ctx.file._python_tag],
        outputs = [folder],
        mnemonic = "PackWheel",
        progress_message = "Packing the wheel of %s" % ctx.attr.package,
    )
    return [DefaultInfo(files = depset([folder]))]

wheel = rule(
    implementation = _wheel_impl,
    doc = "Makes a folder <name>/ that holds one wheel, for the Python whose headers @python_headers has.",
    attrs = {
        "package": attr.string(mandatory = True),
        "version_from": attr.label(
            allow_single_file = True,
            doc = "the file that has the release, as BPS_RELEASE \"1.2.3\" or kRelease = \"1.2.3\"",
        ),
        "license": attr.label(allow_single_file = True),
        "readme": attr.label(allow_single_file = True, doc = "the long description, in Markdown"),
        "contents": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "files -> \"strip:place\"; place \"@scripts\": programs"),
        "entry_points": attr.string_dict(doc = "\"group:name\" -> \"module:function\", as pip's metadata has them"),
        "requires": attr.label_list(
            doc = "what must be there and is not contained: its absence says so before anything is packed",
        ),
        "_python_tag": attr.label(default = "@python_headers//:tag", allow_single_file = True),
        "_packer": attr.label(default = "//tools/bazel:pack_wheel.py", allow_single_file = True),
    },
)
