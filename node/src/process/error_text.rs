//! Text of errors for a person: in their own words, also where `main` returns them.

use std::error::Error;

/// The text of an error in one line, with those of its causes that the text does not contain.
#[must_use]
pub fn error_text(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = next.source();
    }
    text
}

/// Makes `Debug` of an error show its text for a person: that is what a program prints whose `main`
/// returns the error.
macro_rules! debug_as_error_text {
    ($($error:ty),* $(,)?) => {$(
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&error_text(self))
            }
        }
    )*};
}

debug_as_error_text!(
    crate::JoinError,
    crate::SwarmError,
    crate::DriveError,
    crate::PeersFileError,
    crate::peer::membership::MembershipError,
    crate::peer::backend::BackendError,
    crate::tools::audit::AuditError,
    crate::tools::check::CheckError,
    crate::tools::members::MembersError,
    crate::config::ConfigError,
    crate::storage::data_dir::DataDirError,
    crate::tools::link_bench::LinkError,
    crate::tools::top::TopError,
    crate::telemetry::traces::TracesError,
    crate::telemetry::view::ServeError,
);

#[cfg(test)]
mod tests {
    use crate::JoinError;

    #[test]
    fn an_error_that_main_returns_is_told_in_its_words() {
        let error = JoinError::NotResumed { folder: "dnode-data".to_owned(), step: 7 };
        let boxed: Box<dyn std::error::Error> = error.into();
        let text = format!("{boxed:?}");
        assert!(text.starts_with("dnode-data holds a checkpoint of this run at step 7:"), "{text}");
    }
}
