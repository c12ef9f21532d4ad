//! Choice of a backend from the instructions of this CPU, detected once.

use std::sync::OnceLock;

/// A set of loops compiled for one family of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backend {
    /// Plain Rust: the oracle of every test, and the fallback of other CPUs.
    Reference,
    /// 64-bit Arm with hand-written products; the compiler uses NEON for the plain loops already.
    Neon,
    /// AVX2, FMA, F16C.
    Avx2,
    /// AVX-512 F, BW and VL.
    Avx512,
}

impl Backend {
    /// The name that `MICPQ_SIMD` takes.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Reference => "reference",
            Backend::Neon => "neon",
            Backend::Avx2 => "avx2",
            Backend::Avx512 => "avx512",
        }
    }

    /// The backends this CPU can run, slowest first.
    pub fn available() -> Vec<Backend> {
        #[allow(unused_mut)]
        let mut all = vec![Backend::Reference];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx2") && has!("fma") && has!("f16c") {
                all.push(Backend::Avx2);
                if has!("avx512f") && has!("avx512bw") && has!("avx512vl") {
                    all.push(Backend::Avx512);
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        all.push(Backend::Neon);
        all
    }

    /// The fastest backend of this CPU, or the one named in `MICPQ_SIMD` where the CPU has it; chosen at the first call.
    pub fn active() -> Backend {
        static CHOICE: OnceLock<Backend> = OnceLock::new();
        *CHOICE.get_or_init(|| {
            let available = Backend::available();
            let fastest = *available.last().expect("the reference is always there");
            match std::env::var("MICPQ_SIMD") {
                Ok(name) => available.iter().copied().find(|b| b.name() == name).unwrap_or(fastest),
                Err(_) => fastest,
            }
        })
    }
}

/// Defines a safe function whose plain-Rust body is compiled once for every backend and chosen at the call.
///
/// `fn name(args) => body;` with `body` an `#[inline(always)]` function. Bodies do the same operations in the same
/// order in every compilation, so the results are equal bit for bit.
macro_rules! per_backend {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) => $body:path;) => {
        $(#[$doc])*
        $vis fn $name(backend: $crate::Backend, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $ty),*) { $body($($arg),*) }
                #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl")]
                fn avx512($($arg: $ty),*) { $body($($arg),*) }
                match backend {
                    $crate::Backend::Reference | $crate::Backend::Neon => {}
                    // SAFETY: `check` panics unless the CPU has the backend's instructions.
                    $crate::Backend::Avx2 => { backend.check(); return unsafe { avx2($($arg),*) } }
                    // SAFETY: as above.
                    $crate::Backend::Avx512 => { backend.check(); return unsafe { avx512($($arg),*) } }
                }
            }
            let _ = backend;
            $body($($arg),*)
        }
    };
}
pub(crate) use per_backend;

impl Backend {
    /// Panics when this CPU lacks the backend. The safe functions of this crate rely on it.
    #[inline]
    pub(crate) fn check(self) {
        static AVAILABLE: OnceLock<Vec<Backend>> = OnceLock::new();
        assert!(AVAILABLE.get_or_init(Backend::available).contains(&self), "this CPU has no {}", self.name());
    }
}
