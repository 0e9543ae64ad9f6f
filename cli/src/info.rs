//! Explains a spec, or lists this CPU's backends and all codecs.

use crate::backend::cpu;
use crate::codecs::{build, parse_spec};
use crate::console::{COLUMNS, wrap};
use crate::failure::Result;
use octaplex::{Backend, CodecSpec, LayerConfig};
use serde_json::json;
use std::fmt::Write;

/// Returns the text or JSON about a spec.
pub(crate) fn spec(text: &str, dim: usize, as_json: bool) -> Result<String> {
    let spec = parse_spec(text)?;
    build(text, spec, dim, Backend::SCALAR)?;
    let mut parts = Vec::new();
    let mut offset = 0;
    spec.layout(dim, |bytes, words| {
        parts.push((offset, bytes, words.to_owned()));
        offset += bytes;
    });
    let (bytes, bits) = (spec.block_bytes(dim), spec.bits_per_value(dim));
    if as_json {
        let layout: Vec<_> = parts
            .iter()
            .map(|(offset, bytes, words)| json!({"offset": offset, "bytes": bytes, "what": words}))
            .collect();
        let value = json!({
            "spec": spec.to_string(), "full": spec.full().to_string(), "dim": dim, "block_bytes": bytes,
            "bits_per_value": bits, "layout": layout,
        });
        return Ok(format!("{value:#}\n"));
    }
    let mut out = format!(
        "spec            {spec}\nin full         {}\nwidth           {dim}\nblock bytes     {bytes}\nbits per value  {bits}\n",
        spec.full()
    );
    for (offset, bytes, words) in parts {
        let end = offset + bytes - 1;
        let range = if bytes == 1 { format!("byte {offset}") } else { format!("bytes {offset}-{end}") };
        let _ = writeln!(out, "{range:15} {words}");
    }
    let page = LayerConfig::new(1, dim, 1000).keys(spec).values(spec);
    let (mut all, mut parts) = (0, String::new());
    page.page_layout(|bytes, words| {
        all += bytes;
        let _ = writeln!(parts, "{:15} {words}", format!("{bytes} bytes"));
    });
    let page_bits = page.page_bits();
    let most = if spec.page_bytes_max(dim, page.page) > page.page * bytes { "at most " } else { "" };
    let tokens = page.page;
    let _ = write!(
        out,
        "\nin a cache, a page of {tokens} keys and values of a head: {most}{all} bytes, {page_bits:.3} bits a value\n{parts}"
    );
    Ok(out)
}

/// Returns this CPU's backends, fastest first, and the list of codecs.
pub(crate) fn all(as_json: bool) -> String {
    if as_json {
        let codecs: Vec<_> = CodecSpec::all()
            .iter()
            .map(|codec| {
                let keys = codec.keys.iter().map(|key| json!({"name": key.name, "values": key.values}));
                json!({"name": codec.name, "summary": codec.summary, "keys": keys.collect::<Vec<_>>()})
            })
            .collect();
        let aliases: Vec<_> = CodecSpec::aliases()
            .iter()
            .map(|(name, codec, keys)| json!({"name": name, "spec": format!("{codec}:{keys}")}))
            .collect();
        return format!(
            "{:#}\n",
            json!({
                "cpu": cpu(), "backends": Backend::available().map(Backend::name).collect::<Vec<_>>(),
                "codecs": codecs, "aliases": aliases,
            })
        );
    }
    let name = |backend: Backend| {
        let note = if backend == Backend::detect() { " (default)" } else { "" };
        format!("{}{note}", backend.name())
    };
    let names: Vec<_> = Backend::available().map(name).collect();
    let about = format!("CPU: {}\nBackends, fastest first: {}\n", cpu(), names.join(", "));
    let mut out = format!("{}\nCodecs, and the keys of their specs\n", wrap(&about));
    for codec in CodecSpec::all() {
        let options = textwrap::Options::new(COLUMNS).subsequent_indent("               ");
        let _ = writeln!(out, "{}", textwrap::fill(&format!("{:14} {}", codec.name, codec.summary), options));
        for key in codec.keys {
            let _ = writeln!(out, "    {key}");
        }
    }
    for (name, codec, keys) in CodecSpec::aliases() {
        let _ = writeln!(out, "{name:14} another name of {codec}:{keys}");
    }
    out.push_str(
        "\nA spec is name:key=value,key=value; keys left out have their defaults.\n\
         bits= is the rate; the other keys are for experts.\n",
    );
    let _ = writeln!(
        out,
        "Widths: {:?}.\nOne in full: octaplex info trellis:bits=2 --dim 64",
        octaplex::codebook::WIDTHS
    );
    out
}
