//! Firmware for the microcontroller: a timer's interrupt measures, and the main loop reads the measurements.

use crate::monitor::{self, Line, Memory};
use crate::sensor::{Sample, Sensor};
use core::cell::RefCell;
use cortex_m::peripheral::{Peripherals, syst::SystClkSource};
use cortex_m_rt::{entry, exception};
use cortex_m_semihosting::{debug, hprintln};
use critical_section::Mutex;
use heapless::Deque;
use panic_semihosting as _; // a panic ends the emulator with an error status

/// Capacity of the queue: the main loop may be this many samples late while it closes a page.
static QUEUE: Mutex<RefCell<Deque<Sample, 8>>> = Mutex::new(RefCell::new(Deque::new()));

/// Ticks of the clock between samples.
const PERIOD: u32 = 25_000;

/// Measures, unless the queue is full: this sensor waits, so that the run is the same at every speed.
#[exception]
fn SysTick() {
    // The runtime lends the statics at its head to this function as `&mut`.
    static mut SENSOR: Sensor = Sensor::new();
    critical_section::with(|token| {
        let mut queue = QUEUE.borrow_ref_mut(token);
        if !queue.is_full() {
            let _ = queue.push_back(SENSOR.measure());
        }
    });
}

/// Returns the next sample. The processor sleeps until it arrives.
fn next() -> Sample {
    loop {
        if let Some(sample) = critical_section::with(|token| QUEUE.borrow_ref_mut(token).pop_front()) {
            return sample;
        }
        cortex_m::asm::wfi();
    }
}

fn say(line: &Line) {
    hprintln!("{}", line);
}

#[entry]
fn main() -> ! {
    static mut MEMORY: Memory = Memory::new();
    if let Some(mut peripherals) = Peripherals::take() {
        peripherals.SYST.set_clock_source(SystClkSource::Core);
        peripherals.SYST.set_reload(PERIOD);
        peripherals.SYST.clear_current();
        peripherals.SYST.enable_counter();
        peripherals.SYST.enable_interrupt();
    }
    let status = match monitor::run(MEMORY, next, say) {
        Ok(()) => debug::EXIT_SUCCESS,
        Err(error) => {
            hprintln!("{}", error);
            debug::EXIT_FAILURE
        }
    };
    debug::exit(status);
    loop {
        cortex_m::asm::wfi();
    }
}
