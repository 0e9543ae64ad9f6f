//! Prepares keys before they are encoded: by default as the cache does it, the same for every command.

use crate::failure::{Result, fail};
use clap::{Args, ValueEnum};
use octaplex::cache::Center;

/// The preparation of keys before encoding.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) center: Center,
    pub(crate) balance: bool,
}

impl Keys {
    /// Unchanged.
    pub(crate) const RAW: Self = Self { center: Center::Off, balance: false };

    /// As the cache stores them.
    pub(crate) const CACHE: Self = Self { center: Center::Page, balance: true };

    pub(crate) fn describe(self) -> String {
        let center = match self.center {
            Center::Off => "not centred",
            Center::Prefix => "centred on the first tokens' mean",
            Center::Page => "centred page by page",
        };
        match self.balance {
            _ if self == Self::RAW => "as they are".into(),
            true => format!("{center}, balanced"),
            false => center.into(),
        }
    }
}

/// The arguments that prepare keys.
#[derive(Args, Clone, Copy)]
pub(crate) struct KeyOptions {
    /// Keys as the cache stores them (centred page by page and balanced), or raw
    #[arg(help_heading = "Keys", long, value_name = "HOW", default_value = "cache")]
    keys: How,
    /// Subtract from keys: off, prefix (one mean of the first 128 tokens) or page (each page's own) [default: page]
    #[arg(help_heading = "Keys", long, value_name = "WHAT", value_parser = parse_center)]
    center: Option<Center>,
    /// Balance the channels of keys; --balance=false leaves them [default: true, false with --center off]
    #[arg(help_heading = "Keys", long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    balance: Option<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum How {
    /// As the cache stores them
    Cache,
    /// As they are
    Raw,
}

impl KeyOptions {
    /// Returns whether any of the arguments was given.
    pub(crate) fn are_given(&self) -> bool {
        self.keys == How::Raw || self.center.is_some() || self.balance.is_some()
    }

    pub(crate) fn keys(&self) -> Result<Keys> {
        match self.keys {
            How::Raw if self.center.is_some() || self.balance.is_some() => {
                fail!("--keys raw leaves keys as they are; drop it, or --center and --balance")
            }
            How::Raw => Ok(Keys::RAW),
            How::Cache => {
                let center = self.center.unwrap_or(Keys::CACHE.center);
                let balance = if center == Center::Off { false } else { Keys::CACHE.balance };
                Ok(Keys { center, balance: self.balance.unwrap_or(balance) })
            }
        }
    }
}

fn parse_center(text: &str) -> std::result::Result<Center, String> {
    match text {
        "off" => Ok(Center::Off),
        "prefix" => Ok(Center::Prefix),
        "page" => Ok(Center::Page),
        _ => Err("off, prefix or page".into()),
    }
}

pub(crate) fn center_name(center: Center) -> &'static str {
    match center {
        Center::Off => "off",
        Center::Prefix => "prefix",
        Center::Page => "page",
    }
}

/// Parses the tokens of a page.
pub(crate) fn parse_page(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(page @ (64 | 128 | 256)) => Ok(page),
        _ => Err("64, 128 or 256".into()),
    }
}
