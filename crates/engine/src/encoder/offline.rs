//! A build without the feature `hub`: encoders are directories on this machine, and services cannot be asked.

fn absent(name: &str) -> crate::Error {
    crate::Error::config(format!(
        "encoder {name} is not a directory, and this program was built without the feature \"hub\", which fetches encoders \
         and asks services; name a directory, or build with it"
    ))
}

pub(super) mod download {
    use std::path::Path;

    use crate::{Progress, Result};

    pub fn is_name(_: &str) -> bool {
        false
    }

    pub fn download(name: &str, _: &Path, _: &Path, _: &dyn Progress) -> Result<()> {
        Err(super::absent(name))
    }
}

pub(super) mod service {
    use std::convert::Infallible;

    use crate::encoder::Role;
    use crate::encoder::address::ServiceConfig;
    use crate::encoder::forward::Dropout;
    use crate::{Matrix, Progress, Result};

    /// Never exists.
    pub struct Service(Infallible);

    impl Service {
        pub fn open(base: &str, _: &ServiceConfig, _: &dyn Progress) -> Result<Self> {
            Err(super::absent(base))
        }

        pub fn width(&self) -> usize {
            match self.0 {}
        }

        pub fn tokens(&self, _: &str) -> Vec<u32> {
            match self.0 {}
        }

        pub fn encode_views(
            &self,
            _: Role,
            _: &[impl AsRef<[u32]> + Sync],
            _: &[Option<Dropout>],
            _: &dyn Progress,
        ) -> Result<Vec<Matrix>> {
            match self.0 {}
        }
    }
}
