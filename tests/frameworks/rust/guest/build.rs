fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", std::env::var("DEP_BYTEPS_RS_LIBDIR").unwrap());
}
