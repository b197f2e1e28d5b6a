"""The protobuf rules that Bazel 4 has built in, under the names its own tools load them by."""

proto_lang_toolchain = native.proto_lang_toolchain
proto_library = native.proto_library
