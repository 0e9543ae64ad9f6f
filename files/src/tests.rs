#![allow(clippy::unwrap_used)] // tests fail by panicking

use super::*;
use tempfile::{TempDir, tempdir};

fn names(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(path, |file| file.write_all(bytes))
}

#[test]
fn what_lies_beside_a_file_is_nobody_s_business() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("x");
    // Names that earlier versions took for themselves, and names that are nearly those of temporary files.
    let stale = format!("x.{}.tmp", std::process::id());
    let near =
        [".octaplex-aaaaaaa.tmp", ".octaplex-aaa-aa.tmp", ".octaplex-aaaaaa.tmp~", "octaplex-aaaaaa.tmp"];
    for name in ["x.part", &stale].iter().chain(&near) {
        fs::write(folder.path().join(name), "mine").unwrap();
    }
    put(&path, b"one").unwrap();
    put(&path, b"two").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"two");
    assert_eq!(names(&folder).len(), 7);
    for name in names(&folder).iter().filter(|name| *name != "x") {
        assert_eq!(fs::read(folder.path().join(name)).unwrap(), b"mine");
    }
}

/// The next write removes the files of killed writers. It leaves those of living writers, and entries that are no files.
#[test]
fn temporary_files_of_killed_writers_are_removed() {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in [".octaplex-aaaaaa.tmp", ".octaplex-0Zz9Bb.tmp"] {
        fs::write(at(name), "half").unwrap();
    }
    fs::create_dir(at(".octaplex-folder.tmp")).unwrap();
    fs::write(at("own"), "mine").unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink("own", at(".octaplex-linked.tmp")).unwrap();
    let left = names(&folder).len() - 2;
    // While this one writes, others write and create, and its own file stays.
    let written = write(&at("x"), |file| {
        file.write_all(b"first")?;
        put(&at("y"), b"second")?;
        create(&at("z"), |file| file.write_all(b"third"))?;
        assert_eq!(names(&folder).len(), left + 3);
        file.write_all(b" and last")
    });
    written.unwrap();
    assert_eq!(
        (fs::read(at("x")).unwrap(), fs::read(at("own")).unwrap()),
        (b"first and last".to_vec(), b"mine".to_vec())
    );
    assert_eq!(names(&folder).len(), left + 3);
    // Whichever call comes first.
    fs::write(at(".octaplex-bbbbbb.tmp"), "half").unwrap();
    create(&at("new"), |_| Ok(())).unwrap();
    assert!(!at(".octaplex-bbbbbb.tmp").exists());
}

#[test]
fn a_failure_leaves_the_old_file_alone() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("x");
    let fail = |file: &mut dyn Write| {
        file.write_all(&[7; 100_000])?;
        Err(io::Error::other("the disk is full"))
    };
    assert_eq!(write(&path, fail).unwrap_err().to_string(), "the disk is full");
    assert!(names(&folder).is_empty());
    put(&path, b"old").unwrap();
    assert!(write(&path, fail).is_err() && create(&path, |_| Ok(())).is_err());
    assert_eq!((fs::read(&path).unwrap(), names(&folder)), (b"old".to_vec(), vec!["x".to_owned()]));
    let refused = create(&path, |file| file.write_all(b"new")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
    assert_eq!((fs::read(&path).unwrap(), names(&folder)), (b"old".to_vec(), vec!["x".to_owned()]));
    let nowhere = folder.path().join("no folder/x");
    for refused in [put(&nowhere, b""), check(&nowhere), put(folder.path(), b""), check(Path::new("/"))] {
        let error = refused.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::IsADirectory), "{error}");
        assert!(!error.to_string().contains("octaplex-"), "{error}");
    }
}

#[test]
fn writers_at_once_give_one_of_their_files() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("x");
    std::thread::scope(|scope| {
        for byte in 0..4 {
            let path = &path;
            scope.spawn(move || (0..25).for_each(|_| put(path, &[byte; 70_000]).unwrap()));
        }
    });
    let found = fs::read(&path).unwrap();
    assert!(found.len() == 70_000 && found.iter().all(|byte| *byte == found[0]));
    assert_eq!(names(&folder), ["x"]);
}

#[cfg(unix)]
#[test]
fn modes_links_and_devices_stay_what_they_are() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
    fs::write(at("plain"), "").unwrap();
    put(&at("new"), b"new").unwrap();
    assert_eq!(mode("new"), mode("plain"), "a new file gets the mode of any other");
    fs::set_permissions(at("new"), PermissionsExt::from_mode(0o640)).unwrap();
    symlink("new", at("link")).unwrap();
    symlink(at("link"), at("second")).unwrap();
    put(&at("second"), b"followed").unwrap();
    assert_eq!((fs::read(at("new")).unwrap(), mode("new")), (b"followed".to_vec(), 0o640));
    assert!(fs::symlink_metadata(at("second")).unwrap().is_symlink());
    symlink("later", at("dangling")).unwrap();
    put(&at("dangling"), b"created").unwrap();
    assert_eq!(fs::read(at("later")).unwrap(), b"created");
    symlink("circle", at("circle")).unwrap();
    assert!(put(&at("circle"), b"").is_err());
    put(Path::new("/dev/null"), &[0; 100_000]).unwrap();
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    if Path::new("/dev/full").exists() {
        assert_eq!(put(Path::new("/dev/full"), b"x").unwrap_err().kind(), ErrorKind::StorageFull);
    }
    check(&at("dangling")).unwrap();
    check(Path::new("/dev/null")).unwrap();
    assert_eq!(names(&folder), ["circle", "dangling", "later", "link", "new", "plain", "second"]);
}

/// Root may write anywhere: without root, a read-only folder and a read-only file are refused before anything is written.
#[cfg(unix)]
#[test]
fn what_is_read_only_is_noticed_by_the_check() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempdir().unwrap();
    let path = folder.path().join("x");
    put(&path, b"old").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o444)).unwrap();
    let (file, written) = (check(&path), put(&path, b"new"));
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o555)).unwrap();
    let other = check(&folder.path().join("y"));
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    if File::create(folder.path().join("x")).is_ok() {
        println!("what is read-only cannot be tested as root");
        return;
    }
    for refused in [file, written, other] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    assert_eq!((fs::read(&path).unwrap(), names(&folder)), (b"old".to_vec(), vec!["x".to_owned()]));
}
