package hostsnapshot

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// collector fills a snapshot, one kind after the other; processes come first, the other kinds refer to them.
type collector struct {
	snapshot *Snapshot
	opts     Options
	// holding maps what a process has open, is in or stands on to the processes: "dev:ino" of files, "socket:[ino]".
	holding map[string][]ProcessID
	// oursDirs remembers which directories are the observed program's.
	oursDirs map[string]bool
}

func (c *collector) add(kind Kind, key string, item Item) {
	if c.opts.Ignore != nil && c.opts.Ignore(kind, key) {
		return
	}
	if c.snapshot.items[kind] == nil {
		c.snapshot.items[kind] = map[string]Item{}
	}
	c.snapshot.items[kind][key] = item
}

func (c *collector) note(format string, args ...any) {
	c.snapshot.Notes = append(c.snapshot.Notes, fmt.Sprintf(format, args...))
}

// kernelThread is PF_KTHREAD of include/linux/sched.h, in the flags field of /proc/PID/stat.
const kernelThread = 0x00200000

// processes lists every process of the host, each with all its ancestors. One that ends while it is read is not there.
func (c *collector) processes(context.Context) error {
	c.snapshot.processes = map[int]process{}
	c.holding = map[string][]ProcessID{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("the processes of this host can't be listed: %w", err)
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			c.lineage(pid)
		}
	}
	for pid, p := range c.snapshot.processes {
		if !p.kernel {
			c.open(p)
		}
		c.add(Process, fmt.Sprintf("PID %d started at tick %d", pid, p.id.StartTicks), Item{Detail: p.command, holders: []ProcessID{p.id}})
	}
	self, ok := c.snapshot.processes[os.Getpid()]
	if !ok {
		return fmt.Errorf("/proc does not show this process (PID %d); is it mounted for another PID namespace?", os.Getpid())
	}
	c.snapshot.taker, c.snapshot.adopting = self.id, adopting()
	return nil
}

// lineage adds a process after its ancestors. A parent that ended has left the process to another one, so it is read again:
// without its parent a process can't be attributed.
func (c *collector) lineage(pid int) bool {
	for range 100 { // a bound; each turn but the last is a parent that ended in the microseconds since it was named
		if _, known := c.snapshot.processes[pid]; known || pid == 0 {
			return true
		}
		p, err := readProcess(pid)
		if err != nil {
			return false
		}
		if c.lineage(p.ppid) {
			c.snapshot.processes[pid] = p
			return true
		}
	}
	return false
}

// readProcess reads /proc/PID/stat (proc(5)); the command name in parentheses may hold anything, so fields count from the
// last parenthesis.
func readProcess(pid int) (process, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	open, end := strings.IndexByte(string(text), '('), strings.LastIndexByte(string(text), ')')
	if open < 0 || end < open {
		return process{}, fmt.Errorf("/proc/%d/stat has an unknown form: %q", pid, text)
	}
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) < 20 {
		return process{}, fmt.Errorf("/proc/%d/stat has an unknown form: %q", pid, text)
	}
	// Fields 3 (state), 4 (ppid), 9 (flags) and 22 (starttime) of proc(5); the slice begins with field 3.
	p := process{id: ProcessID{PID: pid}, zombie: fields[0] == "Z", command: string(text[open : end+1])}
	p.ppid, _ = strconv.Atoi(fields[1])
	flags, _ := strconv.ParseUint(fields[6], 10, 64)
	p.kernel = flags&kernelThread != 0
	p.id.StartTicks, _ = strconv.ParseUint(fields[19], 10, 64)
	if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && len(line) > 0 {
		p.command = shorten(strings.TrimRight(strings.ReplaceAll(string(line), "\x00", " "), " "), 120)
	}
	return p, nil
}

// open records what the process has open, its working directory and its root, by device and inode.
func (c *collector) open(p process) {
	dir := fmt.Sprintf("/proc/%d", p.id.PID)
	paths := []string{filepath.Join(dir, "cwd"), filepath.Join(dir, "root")}
	if fds, err := os.ReadDir(filepath.Join(dir, "fd")); err == nil {
		for _, fd := range fds {
			paths = append(paths, filepath.Join(dir, "fd", fd.Name()))
		}
	}
	for _, path := range paths {
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil {
			continue
		}
		key := inodeKey(st.Dev, st.Ino)
		if st.Mode&unix.S_IFMT == unix.S_IFSOCK {
			key = fmt.Sprintf("socket:%d", st.Ino)
		}
		if holders := c.holding[key]; len(holders) == 0 || holders[len(holders)-1] != p.id {
			c.holding[key] = append(holders, p.id)
		}
	}
}

func inodeKey(dev, ino uint64) string { return fmt.Sprintf("%d:%d", dev, ino) }

func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "..."
}
