//! Puts the folder of libbyteps.so into the program, unless the loader finds it anyway (in /usr/lib, or by LD_LIBRARY_PATH).

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", std::env::var("DEP_BYTEPS_RS_LIBDIR").unwrap());
}
