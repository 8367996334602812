package container

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/cgroup"
	"golang.org/x/sys/unix"
)

// host is what the driver found out about the host and holds while it is open.
type host struct {
	runtime string
	cgroups *cgroup.Groups
	spawner *spawner
	limits  limits
}

// errNotRoot: containers with an ID range of their own, control groups and links need the host's root.
var errNotRoot = errors.New("running containers needs root; run the agent as root")

// host opens the host at first use. A failed attempt is made again by the next call: what was missing may be there by then.
func (d *Driver) host() (*host, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return nil, errors.New("the container driver is closed")
	case d.opened != nil:
		return d.opened, nil
	case os.Geteuid() != 0:
		return nil, errNotRoot
	}
	runtime, err := d.findRuntime()
	if err != nil {
		return nil, err
	}
	groups, err := cgroup.Find(d.cfg.group())
	if err != nil {
		return nil, err
	}
	limits, err := takeLimits()
	if err != nil {
		return nil, err
	}
	if err := becomeSubreaper(); err != nil {
		return nil, err
	}
	takeAway := groups.Hybrid()
	if filepath.Base(runtime) == "runc" {
		takeAway = "" // runc wants the v2 tree where it is
	}
	spawner, err := newSpawner(takeAway)
	if err != nil {
		return nil, err
	}
	d.opened = &host{runtime: runtime, cgroups: groups, spawner: spawner, limits: limits}
	return d.opened, nil
}

// Close gives back what the driver holds of the host; members run on.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.end()
	if d.opened != nil {
		d.opened.spawner.stop()
		d.opened = nil
	}
	return d.endDetours()
}

func (d *Driver) findRuntime() (string, error) {
	if d.cfg.Runtime != "" {
		return exec.LookPath(d.cfg.Runtime)
	}
	for _, name := range []string{"crun", "runc"} {
		if path, err := exec.LookPath(name); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", errors.New("no OCI runtime (crun or runc) is installed; run: apt-get install crun")
}

// takeLimits finds the limits members can get. Locked memory within a user namespace is also bounded by the limit of the
// process that makes the namespace (user_namespaces(7), since Linux 5.14), which the runtime inherits from the agent: so the
// agent raises its own as far as it may. A hard limit is raised only with CAP_SYS_RESOURCE.
func takeLimits() (limits, error) {
	var files, locked unix.Rlimit
	if err := errors.Join(unix.Getrlimit(unix.RLIMIT_NOFILE, &files), unix.Getrlimit(unix.RLIMIT_MEMLOCK, &locked)); err != nil {
		return limits{}, fmt.Errorf("reading resource limits: %w", err)
	}
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unlimited) == nil {
		locked = unlimited
	} else {
		locked.Cur = locked.Max
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &locked); err != nil {
			return limits{}, fmt.Errorf("raising the limit of locked memory to %d: %w", locked.Max, err)
		}
	}
	score, _ := os.ReadFile("/proc/self/oom_score_adj")
	n, _ := strconv.Atoi(strings.TrimSpace(string(score)))
	return limits{openFiles: files.Max, lockedBytes: locked.Max, lowerOOMScore: n < 0}, nil
}

// beginStart makes what members share, the parents of their control groups, and keeps endClean from removing it until the
// returned function is called.
func (d *Driver) beginStart(h *host) (done func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.starting == 0 {
		if err := h.cgroups.MakeParents(); err != nil {
			return nil, err
		}
		h.limits.swap = h.cgroups.SwapLimit()
	}
	d.starting++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.starting--
	}, nil
}

// endClean removes what members share once there is none.
func (d *Driver) endClean(h *host) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.starting > 0 {
		return nil // whoever cleans that member comes here, too
	}
	if err := unix.Rmdir(d.members); err != nil && !errors.Is(err, unix.ENOENT) {
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			return nil
		}
		return fmt.Errorf("removing %s: %w", d.members, err)
	}
	h.cgroups.RemoveParents()
	return nil
}

// becomeSubreaper makes this process the parent of what its children leave behind: the runtime's commands end and leave
// the members' first processes.
func becomeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the parent of members' first processes: %w", err)
	}
	return nil
}
