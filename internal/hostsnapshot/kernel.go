package hostsnapshot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// namespaceTypes are the links below /proc/PID/ns that name a namespace a process is in (namespaces(7)).
var namespaceTypes = [...]string{"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"}

// namespaces lists those that a process is in and those that a bind mount keeps alive (ip netns does so in /run/netns).
func (c *collector) namespaces(context.Context) error {
	holders := map[string][]ProcessID{}
	for pid, p := range c.snapshot.processes {
		if p.kernel {
			continue
		}
		// A thread may be in other namespaces than its process.
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			continue
		}
		for _, task := range tasks {
			for _, kind := range namespaceTypes {
				name, err := os.Readlink(fmt.Sprintf("/proc/%d/task/%s/ns/%s", pid, task.Name(), kind))
				if ids := holders[name]; err == nil && (len(ids) == 0 || ids[len(ids)-1] != p.id) {
					holders[name] = append(ids, p.id)
				}
			}
		}
	}
	for name, ids := range holders {
		c.add(Namespace, name, Item{holders: ids})
	}
	for line := range strings.Lines(c.read("/proc/self/mountinfo")) {
		m, ok := parseMount(line)
		if !ok || m.fsType != "nsfs" || len(holders[m.root]) > 0 {
			continue
		}
		c.add(Namespace, m.root, Item{Detail: "kept by a mount at " + m.target, place: m.target, ours: c.oursMount(m)})
	}
	return nil
}

type mountLine struct{ device, root, target, fsType, source string }

// parseMount reads a line of mountinfo (proc(5)): ID, parent, device, root, target, options, tags, "-", type, source, options.
func parseMount(line string) (mountLine, bool) {
	fields := strings.Fields(line)
	for i := 6; i+2 < len(fields); i++ {
		if fields[i] == "-" {
			return mountLine{fields[2], fields[3], fields[4], fields[i+1], fields[i+2]}, true
		}
	}
	return mountLine{}, false
}

// mounts lists the mounts of every mount namespace that some process is in. A mount inside a new namespace goes with it, so
// only the namespace's first process is named as its holder.
func (c *collector) mounts(context.Context) error {
	seen := map[string]ProcessID{}
	members := map[string][]ProcessID{}
	for pid, p := range c.snapshot.processes {
		name, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err != nil {
			continue
		}
		members[name] = append(members[name], p.id)
		if _, done := seen[name]; !done && !p.zombie {
			seen[name] = p.id
		}
	}
	for name, id := range seen {
		holders, ofHost := members[name], false
		for _, h := range holders {
			if h == c.snapshot.taker || h.PID == 1 {
				holders, ofHost = nil, true // the host's own mounts belong to nobody in particular
				break
			}
		}
		count := map[string]int{}
		for line := range strings.Lines(c.read(fmt.Sprintf("/proc/%d/mountinfo", id.PID))) {
			m, ok := parseMount(line)
			if !ok {
				continue
			}
			// The same thing may be mounted twice in one place; each counts.
			key := fmt.Sprintf("%s %s on %s of %s", m.fsType, m.root, m.target, name)
			count[key]++
			if n := count[key]; n > 1 {
				key += fmt.Sprintf(" (%d)", n)
			}
			c.add(Mount, key, Item{
				Detail: "source " + m.source, holders: holders, place: m.target,
				ours: ofHost && c.oursMount(m),
			})
		}
	}
	return nil
}

// cgroups lists every directory of every hierarchy that is mounted, v1 and v2.
func (c *collector) cgroups(context.Context) error {
	done := map[string]bool{}
	for line := range strings.Lines(c.read("/proc/self/mountinfo")) {
		m, ok := parseMount(line)
		if !ok || (m.fsType != "cgroup" && m.fsType != "cgroup2") || done[m.device] {
			continue
		}
		done[m.device] = true
		err := filepath.WalkDir(m.target, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return nil //nolint:nilerr // a cgroup that ends meanwhile is not there
			}
			c.add(Cgroup, path, Item{holders: c.inCgroup(path), ours: c.ours(path)})
			return nil
		})
		if err != nil {
			return fmt.Errorf("the cgroups at %s can't be listed: %w", m.target, err)
		}
	}
	return nil
}

// inCgroup returns the processes in a cgroup or below it.
func (c *collector) inCgroup(dir string) []ProcessID {
	var ids []ProcessID
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "cgroup.procs" {
			return nil //nolint:nilerr // as above
		}
		for field := range strings.FieldsSeq(c.read(path)) {
			if pid, err := strconv.Atoi(field); err == nil {
				if p, ok := c.snapshot.processes[pid]; ok {
					ids = append(ids, p.id)
				}
			}
		}
		return nil
	})
	return ids
}

// nftables lists every object of the host's ruleset, as nft(8) prints it. Handles and counters differ by nature and are left out.
func (c *collector) nftables(ctx context.Context) error {
	nft, err := exec.LookPath("nft")
	if err != nil {
		c.note("nftables: the nft command is not installed, so rules were not compared")
		return nil
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, nft, "-j", "list", "ruleset")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("the nftables rules can't be listed: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	var ruleset struct {
		Objects []map[string]any `json:"nftables"`
	}
	if err := json.Unmarshal(out, &ruleset); err != nil {
		return fmt.Errorf("nft printed rules that can't be read: %w", err)
	}
	for i, object := range ruleset.Objects {
		for kind, body := range object {
			if kind == "metainfo" {
				continue
			}
			text, err := json.Marshal(withoutVolatile(body))
			if err != nil {
				return fmt.Errorf("nftables object %d: %w", i, err)
			}
			c.add(NFTables, kind+" "+string(text), Item{})
		}
	}
	return nil
}

// withoutVolatile takes handles and counts out of an object of the ruleset.
func withoutVolatile(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range []string{"handle", "packets", "bytes"} {
			delete(v, name)
		}
		for name, inner := range v {
			v[name] = withoutVolatile(inner)
		}
	case []any:
		for i, inner := range v {
			v[i] = withoutVolatile(inner)
		}
	}
	return v
}

// sysctls lists the switches that turn a host into a router, of all its interfaces.
func (c *collector) sysctls(context.Context) error {
	for _, pattern := range []string{
		"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/conf/*/forwarding", "/proc/sys/net/ipv6/conf/*/forwarding",
		"/proc/sys/net/ipv4/conf/*/rp_filter", "/proc/sys/net/ipv4/conf/*/proxy_arp", "/proc/sys/net/bridge/bridge-nf-call-*",
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return fmt.Errorf("pattern %q: %w", pattern, err)
		}
		for _, path := range paths {
			key := strings.ReplaceAll(strings.TrimPrefix(path, "/proc/sys/"), "/", ".")
			c.add(Sysctl, key, Item{Detail: strings.TrimSpace(c.read(path))})
		}
	}
	return nil
}

// ipc lists System V objects (sysvipc(7)) and POSIX message queues (mq_overview(7)); POSIX shared memory is a file in /dev/shm.
func (c *collector) ipc(context.Context) error {
	for _, kind := range []string{"shm", "sem", "msg"} {
		group := -1
		for i, line := range strings.Split(strings.TrimSpace(c.read("/proc/sysvipc/"+kind)), "\n") {
			fields := strings.Fields(line)
			if i == 0 {
				group = slices.Index(fields, "cgid") // the creator's; columns differ by kind
			} else if len(fields) > max(1, group) && group > 0 {
				ours := c.opts.Group != 0 && fields[group] == fmt.Sprint(c.opts.Group)
				c.add(IPC, fmt.Sprintf("System V %s key %s id %s", kind, fields[0], fields[1]), Item{ours: ours})
			}
		}
	}
	queues, err := os.ReadDir("/dev/mqueue")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.note("ipc: /dev/mqueue can't be read: %v", err)
	}
	for _, q := range queues {
		c.add(IPC, "message queue /"+q.Name(), Item{ours: c.ours("/dev/mqueue/" + q.Name())})
	}
	return nil
}

// loops lists the loop devices in use, with the file behind each.
func (c *collector) loops(context.Context) error {
	paths, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	for _, path := range paths {
		// The kernel appends this to the path of a file that was removed.
		file := strings.TrimSuffix(strings.TrimSpace(c.read(path)), " (deleted)")
		if file != "" {
			c.add(Loop, strings.Split(path, "/")[3], Item{Detail: "of " + file, place: file, ours: c.ours(file)})
		}
	}
	return nil
}

func (c *collector) modules(context.Context) error {
	for line := range strings.Lines(c.read("/proc/modules")) {
		if name, _, ok := strings.Cut(line, " "); ok {
			c.add(Module, name, Item{})
		}
	}
	return nil
}

// files lists everything below the roots by path, type and size. Times are not compared: reading changes them.
func (c *collector) files(context.Context) error {
	roots := c.opts.FileRoots
	if roots == nil {
		roots = DefaultFileRoots[:]
	}
	c.snapshot.roots = map[string]bool{}
	for _, root := range roots {
		c.snapshot.roots[root] = true
		var top unix.Stat_t
		if err := unix.Lstat(root, &top); err != nil {
			continue
		}
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // what vanishes meanwhile is not there
			}
			var st unix.Stat_t
			if unix.Lstat(path, &st) != nil {
				return nil
			}
			if st.Dev != top.Dev {
				if entry.IsDir() {
					return fs.SkipDir // another file system is seen as a mount
				}
				return nil
			}
			c.add(File, path, Item{
				Detail: describeFile(path, st), holders: c.holding[inodeKey(st.Dev, st.Ino)], place: path, ours: c.ours(path),
			})
			return nil
		})
		if err != nil {
			return fmt.Errorf("the files below %s can't be listed: %w", root, err)
		}
	}
	return nil
}

func describeFile(path string, st unix.Stat_t) string {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFLNK:
		target, _ := os.Readlink(path)
		return "link to " + target
	case unix.S_IFREG:
		return fmt.Sprintf("file of %d bytes", st.Size)
	case unix.S_IFSOCK:
		return "socket"
	case unix.S_IFIFO:
		return "pipe"
	default:
		return fmt.Sprintf("device %d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
}

// read returns a file of /proc or /sys; "" when it is gone or not there.
func (c *collector) read(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(text)
}
