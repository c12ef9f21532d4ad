//! The program: its commands, its global flags, and which code runs a command.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use engine::Error;
use engine::encoder::Device;
use engine::error::Remedy;

use crate::args::{
    Build, CacheCommand, Encode, EncoderCommand, Eval, Index, Paper, Search, Serve, Sync, Train, set_device,
};
use crate::commands::{
    build, cache, dedup, distill, doctor, encode, encoder, eval, export, import, index, judge, mcp, paper, score,
    search, serve, sync, topics, train, watch,
};
use crate::progress::TerminalProgress;

/// Document search in 16 to 128 bits per document.
#[derive(Parser)]
#[command(name = "micpq", version, propagate_version = true, after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
    /// Print JSON for programs instead of text for people
    #[arg(long, global = true)]
    pub json: bool,
    /// Show no progress on standard error
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Number of threads. Results do not depend on it. Default: all cores
    #[arg(long, global = true, value_name = "N")]
    pub threads: Option<usize>,
    /// Device to encode on. auto uses a GPU if one works and there is more than a query to encode
    #[arg(long, global = true, value_name = "auto|cpu|cuda[:N]", default_value_t = Device::default())]
    pub device: Device,
}

const EXAMPLES: &str = "\
Examples:
  micpq build news.jsonl -o news.micpq
  micpq search news.micpq \"oil prices and the economy\" -k 10
  micpq search news.micpq \"tea\" --filter \"places:japan\" --json
  micpq eval --model news.micpq/model --database train.csv --queries test.csv

Exit codes: 0 done, 1 failed, 2 wrong usage.";

#[derive(Subcommand)]
pub enum Command {
    /// Train on a corpus without labels, then index it: one command from raw text to search
    Build(Build),
    /// Search an index
    Search(Search),
    /// Keep an index like a folder: add, replace and delete what changed
    Sync(Sync),
    /// Serve indexes over HTTP, with a page to search them
    Serve(Serve),
    /// Give an assistant indexes to search, over the Model Context Protocol
    Mcp(mcp::Mcp),
    /// Measure a model on labelled corpora: P@k, MAP, recall 10@100, beside exact float search
    Eval(Eval),
    /// Encode a corpus as embeddings, or with --model as codes (.npy)
    Encode(Encode),
    /// Train a model on a corpus
    Train(Train),
    /// Run the paper's evaluation from a plan, and write its report
    Paper(Paper),
    /// Create and maintain an index: create, add, delete, info, stats, recall, verify, compact, backup, backups, restore, migrate
    #[command(subcommand)]
    Index(Index),
    /// Show what the documents of an index are about: clusters with names, typical documents and a trend
    Topics(topics::TopicsArgs),
    /// Find duplicates and near-duplicates in an index, and delete or mark them
    Dedup(dedup::Dedup),
    /// Save queries with an index, and tell which new documents match them
    #[command(subcommand, name = "watch")]
    SavedQueries(watch::SavedQueries),
    /// Make a query encoder that takes microseconds, for an index or a model
    Distill(distill::Distill),
    /// Write an index as FAISS, Parquet, Arrow, JSONL, a BEIR folder, a TREC run or plain codes
    Export(export::Export),
    /// Create an index from a FAISS product quantizer, or from vectors of any encoder
    Import(import::Import),
    /// Judge an index by a BEIR folder: codes, re-ranked, hybrid, BM25 and exact float side by side
    Judge(judge::Judge),
    /// Score a TREC run: nDCG@10, Recall@100, MAP
    Score(score::Score),
    /// Download and show encoders
    #[command(subcommand)]
    Encoder(EncoderCommand),
    /// Show and clear the cache of vectors, views and checkpoints
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Say what would not work on this machine or with an index, and what to do about it
    Doctor(doctor::Doctor),
    /// Print the completion script of a shell
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of all commands into a folder
    Man {
        /// Folder, such as /usr/local/share/man/man1
        folder: PathBuf,
    },
}

pub fn run(args: Args) -> Result<()> {
    set_device(args.device);
    let (json, progress) = (args.json, TerminalProgress::new(args.quiet));
    match args.command {
        Command::Build(a) => build::run(a, json, &progress),
        Command::Search(a) => search::run(a, json, &progress),
        Command::Sync(a) => sync::run(a, json, &progress),
        Command::Serve(a) => serve::run(a, json, &progress),
        Command::Mcp(a) => mcp::run(a, json, &progress),
        Command::Eval(a) => eval::run(a, json, &progress),
        Command::Encode(a) => encode::run(a, json, &progress),
        Command::Train(a) => train::run(a, json, &progress),
        Command::Paper(a) => paper::run(a, json, args.quiet, &progress),
        Command::Index(command) => index::run(command, json, &progress),
        Command::Topics(a) => topics::run(a, json, &progress),
        Command::Dedup(a) => dedup::run(a, json, &progress),
        Command::SavedQueries(command) => watch::run(command, json, &progress),
        Command::Distill(a) => distill::run(a, json, &progress),
        Command::Export(a) => export::run(a, json, &progress),
        Command::Import(a) => import::run(a, json, &progress),
        Command::Judge(a) => judge::run(a, json, &progress),
        Command::Score(a) => score::run(a, json, &progress),
        Command::Encoder(command) => encoder::run(command, json, &progress),
        Command::Cache(command) => cache::run(command, json),
        Command::Doctor(a) => doctor::run(&a, json),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Args::command(), "micpq", &mut std::io::stdout());
            Ok(())
        }
        Command::Man { folder } => man(&folder),
    }
}

/// Writes a manual page for every command, `micpq-search.1` for `micpq search`.
fn man(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
    clap_mangen::generate_to(Args::command(), folder).map_err(Error::io(folder))?;
    Ok(())
}

/// The text of an error about an option that is a flag of the command that was given, with the name of the flag.
pub fn in_flags(error: &Error) -> Option<String> {
    let Error::Config { option: Some(option), problem, .. } = error else { return None };
    let given: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    flag_of(option, &given).map(|flag| format!("{flag} {problem}"))
}

/// The flag of an option in the command that the first words of a command line name.
fn flag_of(option: &str, words: &[String]) -> Option<String> {
    let mut command = &Args::command();
    for word in words {
        match command.find_subcommand(word) {
            Some(found) => command = found,
            None => break,
        }
    }
    let flag = command.get_arguments().find(|argument| argument.get_id() == option)?;
    let long = flag.get_long().map(|name| format!("--{name}"));
    long.or_else(|| flag.get_short().map(|name| format!("-{name}")))
}

/// The command that helps against an error.
pub fn command_for(remedy: &Remedy) -> String {
    match remedy {
        Remedy::BuildIndex => "micpq build CORPUS -o INDEX".into(),
        Remedy::VerifyIndex => "micpq index verify INDEX".into(),
        Remedy::Distil => "micpq distill INDEX".into(),
        Remedy::PullEncoder(None) => "micpq encoder list".into(),
        Remedy::PullEncoder(Some(name)) => format!("micpq encoder pull {name}"),
        Remedy::TrainModel => "micpq train CORPUS -o MODEL".into(),
        Remedy::FollowTopics => "micpq topics INDEX --extend ATTRIBUTE --follow".into(),
        Remedy::MakeKey => "micpq serve --new-key admin".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_the_flags_of_the_command_that_was_given() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(flag_of("rerank_vectors", &words("build corpus")).unwrap(), "--rerank-vectors");
        assert_eq!(flag_of("hybrid", &words("search i")).unwrap(), "--hybrid");
        // A flag of another command is no help.
        assert_eq!(flag_of("rerank_vectors", &words("search i")), None);
    }

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_command_for_every_remedy_is_accepted() {
        for remedy in [
            Remedy::BuildIndex,
            Remedy::VerifyIndex,
            Remedy::Distil,
            Remedy::PullEncoder(None),
            Remedy::PullEncoder(Some("tiny".into())),
            Remedy::TrainModel,
            Remedy::FollowTopics,
            Remedy::MakeKey,
        ] {
            let line = command_for(&remedy);
            if let Err(error) = Args::try_parse_from(words_of(&line)) {
                panic!("{line}: {error}");
            }
        }
    }

    /// Files of Rust below a folder, but for those of tests.
    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match (path.is_dir(), path.file_stem().unwrap().to_str().unwrap()) {
                (_, name) if name == "tests" || name.ends_with("_tests") => (),
                (true, _) => sources(&path, found),
                (false, _) => found.push(path),
            }
        }
    }

    #[test]
    fn no_text_of_a_library_names_a_command_or_a_flag() {
        let (program, mut names) = (Args::command(), Vec::new());
        for command in program.get_subcommands() {
            names.push(format!("micpq {}", command.get_name()));
            let all = std::iter::once(command).chain(command.get_subcommands());
            let flags = all.flat_map(clap::Command::get_arguments).filter_map(clap::Arg::get_long);
            names.extend(flags.map(|flag| format!("--{flag}")));
        }
        // A command stands in quotes: "a micpq index" is none.
        let is_name = |line: &str, name: &str| {
            let begins = |before: &str| name.starts_with("--") || !before.ends_with(' ');
            let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_');
            line.match_indices(name).any(|(at, _)| begins(&line[..at]) && ends(&line[at + name.len()..]))
        };
        for library in ["engine", "train", "methods", "micpq", "serve", "mcp", "backups", "paper"] {
            let mut files = Vec::new();
            sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(library).join("src"), &mut files);
            assert!(!files.is_empty(), "{library}");
            // The README of a model is a page of its user's, with the commands that use it.
            for file in files.iter().filter(|file| !file.ends_with("engine/src/model/card.rs")) {
                let text = std::fs::read_to_string(file).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap().lines();
                for line in code.filter(|line| !line.trim_start().starts_with("//")) {
                    let found = names.iter().find(|name| is_name(line, name));
                    assert_eq!(found, None, "{}: {line}", file.display());
                }
            }
        }
    }

    /// The words of a line of a shell, up to a comment.
    fn words_of(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quote, mut inside) = (Vec::new(), String::new(), None, false);
        for character in line.chars() {
            match (quote, character) {
                (Some(open), c) if c == open => quote = None,
                (None, '"' | '\'') => (quote, inside) = (Some(character), true),
                (None, '#') if !inside => break,
                (None, ' ') if inside => {
                    words.push(std::mem::take(&mut word));
                    inside = false;
                }
                (None, ' ') => {}
                (_, c) => {
                    word.push(c);
                    inside = true;
                }
            }
        }
        if inside {
            words.push(word);
        }
        words
    }

    #[test]
    fn the_commands_of_the_first_pages_are_accepted() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut commands = 0;
        for page in ["README.md", "docs/start.md"] {
            let text = std::fs::read_to_string(root.join(page)).unwrap();
            let mut fenced = false;
            for line in text.lines() {
                fenced ^= line.starts_with("```");
                let code = fenced || line.starts_with("    ");
                let line = line.trim();
                if !code || !line.starts_with("micpq ") || line.contains("...") {
                    continue;
                }
                if let Err(error) = Args::try_parse_from(words_of(line)) {
                    panic!("{page}: {line}: {error}");
                }
                commands += 1;
            }
        }
        assert!(commands > 10, "{commands} commands were found");
        assert_eq!(words_of("micpq search i \"a # b\" -k 3 # a comment"), ["micpq", "search", "i", "a # b", "-k", "3"]);
    }
}
