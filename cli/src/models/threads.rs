//! Sets the number of threads that candle multiplies with.

use std::env;
use std::thread::available_parallelism;

/// The variable that candle reads this from, once.
const THREADS: &str = "CANDLE_NUM_THREADS";

/// Starts this program again with a number of threads for candle, unless the user has given one. Candle starts a thread for
/// each core of the machine, however many cores this process may use. After each of some two hundred products a token, its
/// threads spin until all are done, so one that waits for its core stops them all. So the number is at most that of the
/// usable cores, and one if there are two. A process cannot change its own variables safely; hence another program in its
/// place, with the same process number and the same files.
///
/// SmolLM2-135M in Q4_1 on two cores with a load of 8: 5.9, 17.0 and 8.5 tokens/s with one thread, 1.0 each time with two (three
/// pairs of runs in turns, medians of 16 tokens).
pub(crate) fn settle() {
    if [THREADS, "RAYON_NUM_THREADS"].iter().any(|name| env::var_os(name).is_some()) {
        return;
    }
    let (Ok(cores), Ok(program)) = (available_parallelism(), env::current_exe()) else { return };
    let cores = cores.get().min(sysinfo::System::physical_core_count().unwrap_or(usize::MAX));
    let threads = if cores <= 2 { 1 } else { cores };
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;
        let mut arguments = env::args_os();
        let mut command = std::process::Command::new(program);
        command.arg0(arguments.next().unwrap_or_default());
        // If that fails, this program continues as it is.
        let _ = command.args(arguments).env(THREADS, threads.to_string()).exec();
    }
    #[cfg(not(unix))]
    let _ = (threads, program);
}
