// A build script, so that the features named for procedural macros count.
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
