//! The memory that a program can still take, which hosts plan by.

use crate::system::physical_memory;
use std::path::Path;

/// Returns the bytes that are available, and all bytes: of the machine, or of the container if it has less.
pub(crate) fn available() -> (usize, usize) {
    let (free, of_machine) = physical_memory();
    // Linux alone has these files.
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let free = read("/proc/meminfo").and_then(|text| available_in(&text)).unwrap_or(free);
    limited(&read, (free, of_machine))
}

/// Returns `MemAvailable`: free memory, and what the system takes back from its caches of files.
fn available_in(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// Applies the limits of the process's control groups, of both versions, and of the groups around them.
fn limited(read: &dyn Fn(&str) -> Option<String>, (mut free, machine): (usize, usize)) -> (usize, usize) {
    let mut total = machine;
    for line in read("/proc/self/cgroup").unwrap_or_default().lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (mount, most, used, cache) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
        } else if controllers.split(',').any(|name| name == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        } else {
            continue;
        };
        // Inside a container the group's path may be that of the machine, whose folders are not visible.
        for folder in Path::new(group).ancestors() {
            let folder = format!("{mount}{}", folder.to_string_lossy().trim_end_matches('/'));
            let number = |file: &str| read(&format!("{folder}/{file}"))?.trim().parse::<usize>().ok();
            // "max" is no number; version 1 has a number beyond any machine.
            let Some(most) = number(most).filter(|most| *most < machine) else { continue };
            let stat = read(&format!("{folder}/memory.stat")).unwrap_or_default();
            let cache = stat.lines().find_map(|line| line.strip_prefix(cache)?.trim().parse::<usize>().ok());
            let used = number(used).unwrap_or(0).saturating_sub(cache.unwrap_or(0));
            total = total.min(most);
            free = free.min(most.saturating_sub(used));
        }
    }
    (free, total)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: usize = 1 << 30;

    fn with(files: &[(&str, &str)]) -> (usize, usize) {
        let read =
            |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned());
        limited(&read, (6 * GIB, 8 * GIB))
    }

    #[test]
    fn caches_of_files_are_available() {
        let text = "MemTotal:       8000000 kB\nMemFree:          100000 kB\nMemAvailable:    7000000 kB\n";
        assert_eq!(available_in(text), Some(7_000_000 * 1024));
        assert_eq!(available_in("MemTotal: 1 kB\n"), None);
        let (free, total) = available();
        assert!(0 < free && free <= total);
    }

    #[test]
    fn a_container_limits_the_memory() {
        assert_eq!(with(&[]), (6 * GIB, 8 * GIB));
        let unified = [
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "2147483648\n"),
            ("/sys/fs/cgroup/a/memory.current", "1610612736\n"),
            ("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 536870912\nactive_file 5\n"),
        ];
        assert_eq!(with(&unified), (GIB, 2 * GIB));
        // A group within a larger one that others have nearly filled.
        let full = [
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "1073741824\n"),
            ("/sys/fs/cgroup/a/b/memory.current", "0\n"),
            ("/sys/fs/cgroup/a/memory.max", "2147483648\n"),
            ("/sys/fs/cgroup/a/memory.current", "2147479552\n"),
        ];
        assert_eq!(with(&full), (4096, GIB));
        // The folder of the path is not visible, as in a container.
        let first = [
            ("/proc/self/cgroup", "9:cpu:/docker/x\n8:memory,hugetlb:/docker/x\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n"),
            ("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 1048576\n"),
        ];
        assert_eq!(with(&first), (1 << 20, GIB));
        let unlimited = [
            ("/proc/self/cgroup", "8:memory:/\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(with(&unlimited), (6 * GIB, 8 * GIB));
    }
}
