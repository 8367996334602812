package lvmthin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// tag marks the logical volumes that are volumes. With the tags that begin with these, they have their exact size, and what a snapshot holds.
const (
	tag     = "nearmetal"
	tagSize = "nearmetal.bytes="
	tagHeld = "nearmetal.held="
)

// prefix begins the names of logical volumes that are volumes. "+" is in no UID.
const (
	prefix    = "nearmetal+"
	separator = "+"
)

// The roles of logical volumes. A snapshot's name ends with its UID.
const (
	roleVolume   = "volume"
	roleDraft    = "draft"
	roleCopy     = "copy"
	roleSnapshot = "snapshot"
	// roleOld is what a draft is about to replace.
	roleOld = "old"
)

// logical is a logical volume of the group that is in the thin pool.
type logical struct {
	Name   string
	Size   int64
	Active bool
	// UID, Role and Snapshot are those of a volume of this node; all are empty for what belongs to others.
	UID, Role, Snapshot string
	// Bytes is the size that was asked for, of which Size is a multiple of the group's extents. Held is what a snapshot had blocks for when it was
	// made; 0: not known.
	Bytes, Held int64
}

func (l logical) own() bool { return l.UID != "" }

// pool is the thin pool.
type pool struct {
	Size, Metadata         int64
	Chunk, Extent          int64
	DataPart, MetadataPart float64
	Active, Zeroes         bool
	// Health is LVM's word for what is wrong with it; "" otherwise.
	Health string
}

// found is what a look at the volume group has found.
type found struct {
	Pool    *pool
	Logical []logical
}

// get returns a logical volume of a volume; nil: it is not there.
func (f *found) get(uid, role, snapshot string) *logical {
	for i := range f.Logical {
		if l := &f.Logical[i]; l.UID == uid && l.Role == role && l.Snapshot == snapshot {
			return l
		}
	}
	return nil
}

// drop forgets a logical volume that was removed.
func (f *found) drop(name string) {
	f.Logical = slices.DeleteFunc(f.Logical, func(l logical) bool { return l.Name == name })
}

// room is the arithmetic of what was found.
func (f *found) room() Room {
	p := f.Pool
	r := Room{
		TotalBytes: p.Size, UsedBytes: int64(p.DataPart / 100 * float64(p.Size)), ChunkBytes: p.Chunk, ExtentBytes: p.Extent,
		MetadataBytes: p.Metadata, MetadataUsedBytes: int64(p.MetadataPart / 100 * float64(p.Metadata)),
	}
	for _, l := range f.Logical {
		t := Taken{SizeBytes: l.Size, Foreign: !l.own()}
		if l.Role == roleSnapshot || l.Role == roleCopy {
			t.MappedBytes = l.Held
		}
		r.Volumes = append(r.Volumes, t)
	}
	return r
}

// nameOf is the name of a logical volume.
func nameOf(uid, role, snapshot string) string {
	name := prefix + uid + separator + role
	if snapshot != "" {
		name += separator + snapshot
	}
	return name
}

// columns of the report that parse reads.
var columns = []string{
	"lv_name", "lv_size", "lv_tags", "pool_lv", "segtype", "zero", "chunk_size", "lv_metadata_size", "data_percent", "metadata_percent",
	"lv_health_status", "lv_active", "vg_extent_size",
}

// parse reads a report of lvs about the thin pool with a name: all sizes are in bytes.
func parse(report []byte, thinPool string) (f found, err error) {
	var all struct {
		Report []struct {
			LV []map[string]string `json:"lv"`
		} `json:"report"`
	}
	if err := json.Unmarshal(report, &all); err != nil {
		return f, fmt.Errorf("reading what lvs printed: %w", err)
	}
	for _, r := range all.Report {
		for _, row := range r.LV {
			if err := f.add(row, thinPool); err != nil {
				return f, fmt.Errorf("reading what lvs printed of %s: %w", row["lv_name"], err)
			}
		}
	}
	return f, nil
}

// add takes one row of a report.
func (f *found) add(row map[string]string, thinPool string) error {
	name := strings.Trim(row["lv_name"], "[]") // LVM's own are in brackets
	size, err := number(row["lv_size"])
	switch {
	case err != nil:
		return err
	case name == thinPool && row["segtype"] == "thin-pool":
		f.Pool, err = poolOf(row, size)
		return err
	case row["pool_lv"] != thinPool:
		return nil
	}
	l := logical{Name: name, Size: size, Bytes: size, Active: row["lv_active"] == "active"}
	tags := strings.Split(row["lv_tags"], ",")
	parts := strings.Split(strings.TrimPrefix(name, prefix), separator)
	if slices.Contains(tags, tag) && strings.HasPrefix(name, prefix) && known(parts) {
		l.UID, l.Role = parts[0], parts[1]
		if len(parts) > 2 {
			l.Snapshot = parts[2]
		}
		for _, t := range tags {
			for begins, value := range map[string]*int64{tagSize: &l.Bytes, tagHeld: &l.Held} {
				if text, ok := strings.CutPrefix(t, begins); ok {
					if *value, err = number(text); err != nil {
						return err
					}
				}
			}
		}
	}
	f.Logical = append(f.Logical, l)
	return nil
}

// known reports whether these are the parts of the name of a logical volume that is a volume.
func known(parts []string) bool {
	switch {
	case len(parts) < 2 || parts[0] == "":
		return false
	case parts[1] == roleSnapshot:
		return len(parts) == 3 && parts[2] != ""
	}
	return len(parts) == 2 && slices.Contains([]string{roleVolume, roleDraft, roleCopy, roleOld}, parts[1])
}

func poolOf(row map[string]string, size int64) (*pool, error) {
	p := &pool{Size: size, Active: row["lv_active"] == "active", Zeroes: row["zero"] != "" && row["zero"] != "0", Health: row["lv_health_status"]}
	var err error
	for column, value := range map[string]*int64{"lv_metadata_size": &p.Metadata, "chunk_size": &p.Chunk, "vg_extent_size": &p.Extent} {
		if *value, err = number(row[column]); err == nil && *value <= 0 {
			err = fmt.Errorf("%s is %q", column, row[column])
		}
		if err != nil {
			return nil, err
		}
	}
	for column, value := range map[string]*float64{"data_percent": &p.DataPart, "metadata_percent": &p.MetadataPart} {
		if row[column] == "" { // a pool that is not active
			continue
		}
		if *value, err = strconv.ParseFloat(row[column], 64); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func number(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) }

// settings are what LVM's configuration is overridden by. LVM would keep an old copy of its metadata for each change, a month long; the newest is kept.
// Without a udev that runs, as in a machine of tests, LVM must make the device nodes itself.
func settings() string {
	text := "backup/archive=0"
	if _, err := os.Stat("/run/udev/control"); errors.Is(err, fs.ErrNotExist) {
		text += " activation/udev_sync=0 activation/udev_rules=0"
	}
	return text
}

// run runs a command of LVM and returns what it printed. Neither the end of a context nor of this process ends it, because LVM must not be stopped while
// it has devices suspended: it is in a process group of its own, and writes to files in memory, not to a pipe that breaks.
func run(command string, args ...string) ([]byte, error) {
	path, err := program("lvm")
	if err != nil {
		return nil, errors.New(notInstalled)
	}
	output, err := inMemory("stdout")
	if err != nil {
		return nil, err
	}
	defer output.Close()
	problems, err := inMemory("stderr")
	if err != nil {
		return nil, err
	}
	defer problems.Close()
	cmd := exec.Command(path, append([]string{command, "--config", settings()}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "LVM_SUPPRESS_FD_WARNINGS=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stdout, cmd.Stderr = output, problems
	failed := cmd.Run()
	printed, err := contentOf(output)
	said, more := contentOf(problems)
	if failed != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", command, strings.Join(args, " "), failed, strings.Join(strings.Fields(string(said)), " "))
	}
	return printed, errors.Join(err, more)
}

// inMemory returns a file that is on no disk.
func inMemory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func contentOf(file *os.File) ([]byte, error) {
	return io.ReadAll(io.NewSectionReader(file, 0, 64<<20))
}

// program finds a system program; a user's PATH lacks their directories.
func program(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return exec.LookPath(name)
}
