//! On the host: the sensor is read whenever a sample is needed.

use crate::{monitor, sensor::Sensor};
use octaplex::Error;

pub fn run() -> Result<(), Error> {
    let mut sensor = Sensor::new();
    monitor::run(&mut monitor::Memory::new(), || sensor.measure(), |line| println!("{line}"))
}
