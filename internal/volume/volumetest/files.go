package volumetest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// user is the user of members.
const user = 1000

// As does something in an attached volume as a user of the cluster's members, by the IDs that it has on the host. Files are reached with that
// user's rights only, from the volume's root directory on: that is where members have it from.
func As(t testing.TB, p volume.Pool, uid string, a volume.Attachment, id uint32, do func(root *os.Root) error) error {
	t.Helper()
	root, err := os.OpenRoot(p.Dir(uid, a.ClusterUID))
	if err != nil {
		return err
	}
	defer root.Close()
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its IDs
		uid := int(a.UserIDs.First + id)
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, uintptr(uid), 0, 0)
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0)
		if now, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, ^uintptr(0), 0, 0); int(now) != uid {
			result <- fmt.Errorf("the thread has the user ID %d, want %d", int(now), uid)
			return
		}
		result <- do(root)
	}()
	return <-result
}

// Write makes an attached volume hold a file of so many bytes, as the user of the cluster's members. It is on the disk when Write returns.
func Write(t *testing.T, p volume.Pool, uid string, a volume.Attachment, name string, size int64) error {
	t.Helper()
	return As(t, p, uid, a, user, func(root *os.Root) error {
		file, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
		if err != nil {
			return err
		}
		chunk := bytes.Repeat([]byte(name), 1<<20/len(name)+1)[:1<<20]
		for written := int64(0); written < size && err == nil; written += int64(len(chunk)) {
			_, err = file.Write(chunk[:min(int64(len(chunk)), size-written)])
		}
		return errors.Join(err, file.Sync(), file.Close())
	})
}

// attached applies volume 1 with attachments to some clusters.
func (r *rig) attached(t *testing.T, all ...volume.Attachment) volume.Volume {
	t.Helper()
	needs.Ability(t, r.Files, "volumes are directories")
	v := Volume(1)
	v.Attachments = all
	r.apply(t, v)
	return v
}

func writable(t *testing.T, r *rig) {
	a := Attachment(1)
	v := r.attached(t, a)
	dir := r.Dir(v.UID, a.ClusterUID)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("a new volume has %v, %v", entries, err)
	}
	if err := Write(t, r.Pool, v.UID, a, "data", 1<<20); err != nil {
		t.Error(err)
	}
	if err := As(t, r.Pool, v.UID, a, 0, func(root *os.Root) error { return root.Mkdir("of-root", 0o755) }); !errors.Is(err, os.ErrPermission) {
		t.Errorf("an ID that is only the member's root has more rights on the host than others: %v", err)
	}
	if s := r.ready(t, v.UID); s.UsedFiles != 1 || s.UsedBytes < 1<<20 {
		t.Errorf("with a file it is %+v", s)
	}
	// No program of a volume has its owner's rights, and no device works.
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Flags&unix.ST_NOSUID == 0 || fs.Flags&unix.ST_NODEV == 0 {
		t.Errorf("the mount has flags %#x, %v; want nosuid and nodev", fs.Flags, err)
	}
}

func owners(t *testing.T, r *rig) {
	one, two := Attachment(1), Attachment(2)
	v := r.attached(t, one, two)
	if err := Write(t, r.Pool, v.UID, one, "data", 4096); err != nil {
		t.Fatal(err)
	}
	for _, a := range v.Attachments {
		for _, path := range []string{"", "data"} {
			info, err := os.Stat(filepath.Join(r.Dir(v.UID, a.ClusterUID), path))
			if err != nil {
				t.Fatal(err)
			}
			stat, _ := info.Sys().(*syscall.Stat_t)
			if stat.Uid != a.UserIDs.First+user || stat.Gid != a.UserIDs.First+user {
				t.Errorf("%q belongs to %d:%d for %s, want %d more than %d", path, stat.Uid, stat.Gid, a.ClusterUID, user, a.UserIDs.First)
			}
		}
	}
	if err := Write(t, r.Pool, v.UID, two, "data", 8192); err != nil {
		t.Errorf("the same user of another cluster can't write to it: %v", err)
	}
	if info, err := os.Stat(filepath.Join(r.Dir(v.UID, one.ClusterUID), "data")); err != nil || info.Size() != 8192 {
		t.Errorf("what the other wrote is %v, %v", info, err)
	}
}

func readOnly(t *testing.T, r *rig) {
	one, two := Attachment(1), Attachment(2)
	two.ReadOnly = true
	v := r.attached(t, one, two)
	if err := Write(t, r.Pool, v.UID, one, "data", 4096); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(r.Dir(v.UID, two.ClusterUID), "data")); err != nil || len(data) != 4096 {
		t.Errorf("it reads %d bytes, %v", len(data), err)
	}
	if err := Write(t, r.Pool, v.UID, two, "data", 1); !errors.Is(err, unix.EROFS) {
		t.Errorf("it writes: %v; want a read-only file system", err)
	}
}

func fullOfBytes(t *testing.T, r *rig) {
	a := Attachment(1)
	v := r.attached(t, a)
	if err := Write(t, r.Pool, v.UID, a, "data", 2*SizeBytes); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("writing more than it can hold: got %v, want ENOSPC", err)
	}
	if s := r.ready(t, v.UID); s.UsedBytes > SizeBytes || s.UsedBytes < SizeBytes*3/4 {
		t.Errorf("full, it is %+v", s)
	}
	if err := os.Truncate(filepath.Join(r.Dir(v.UID, a.ClusterUID), "data"), 0); err != nil {
		t.Fatal(err)
	}
	if err := Write(t, r.Pool, v.UID, a, "other", SizeBytes/2); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

func fullOfFiles(t *testing.T, r *rig) {
	a := Attachment(1)
	v := r.attached(t, a)
	dir := r.Dir(v.UID, a.ClusterUID)
	most := r.ready(t, v.UID).MaxFiles
	count := int64(0)
	err := As(t, r.Pool, v.UID, a, user, func(root *os.Root) error {
		for ; count <= 2*MaxFiles; count++ {
			file, err := root.Create(fmt.Sprint(count))
			if err != nil {
				return err
			}
			_ = file.Close()
		}
		return nil
	})
	if !errors.Is(err, unix.ENOSPC) || count < MaxFiles || count > most {
		t.Fatalf("made %d files of %d to %d: got %v, want ENOSPC", count, MaxFiles, most, err)
	}
	if s := r.ready(t, v.UID); s.UsedFiles != count {
		t.Errorf("with %d files it is %+v", count, s)
	}
	if err := os.Remove(filepath.Join(dir, "0")); err != nil {
		t.Fatal(err)
	}
	if err := Write(t, r.Pool, v.UID, a, "other", 1); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

func contents(t *testing.T, r *rig) {
	a := Attachment(1)
	v := r.attached(t, a)
	if err := Write(t, r.Pool, v.UID, a, "first", 1<<20); err != nil {
		t.Fatal(err)
	}
	v.Snapshots = []string{"snap-a"}
	r.apply(t, v)
	if err := Write(t, r.Pool, v.UID, a, "second", 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(r.Dir(v.UID, a.ClusterUID), "first"), 1); err != nil {
		t.Fatal(err)
	}
	clone := Volume(2)
	clone.Origin, clone.Attachments = &api.VolumeOrigin{VolumeUID: v.UID, SnapshotUID: "snap-a"}, v.Attachments
	r.apply(t, clone)
	v.Attachments, v.Restore = nil, &api.VolumeRestoreIntent{SnapshotUID: "snap-a", Number: 1}
	r.apply(t, v)
	v.Attachments = clone.Attachments
	r.apply(t, v)
	for _, uid := range []string{v.UID, clone.UID} {
		dir := r.Dir(uid, a.ClusterUID)
		data, err := os.ReadFile(filepath.Join(dir, "first"))
		if err != nil || len(data) != 1<<20 || !bytes.HasPrefix(data, []byte("firstfirst")) {
			t.Errorf("the file of the snapshot has %d bytes in %s, %v", len(data), uid, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "second")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s has a file that came after the snapshot: %v", uid, err)
		}
	}
}
