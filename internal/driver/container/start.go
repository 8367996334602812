package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/tracing"
)

// Start writes the member's files, creates the container, attaches its port and lets its first process go. A crash between any
// two of these leaves debris that Observe shows as prepared; the next Start begins anew.
func (d *Driver) Start(ctx context.Context, m driver.Member) error {
	if err := d.start(ctx, m); err != nil {
		return fmt.Errorf("starting member %q: %w", m.Assignment.ID, err)
	}
	return nil
}

func (d *Driver) start(ctx context.Context, m driver.Member) error {
	id := m.Assignment.ID
	m, err := d.asContainer(m)
	if err != nil {
		return err
	}
	if err := checkMember(m); err != nil {
		return err
	}
	h, err := d.host()
	if err != nil {
		return err
	}
	switch seen := d.look(h, id); seen.state {
	case driver.StateRunning, driver.StatePaused:
		return nil
	case driver.StatePrepared, driver.StateExited:
		if err := d.removeRuntime(ctx, h, id); err != nil {
			return fmt.Errorf("removing the remains of an earlier start: %w", err)
		}
	}
	done, err := d.beginStart(h)
	if err != nil {
		return err
	}
	defer done()
	// The directory comes first: by it Observe sees the member, and its sandbox has a use.
	if err := os.MkdirAll(d.dir(id), 0o700); err != nil {
		return err
	}
	shared := d.sharing(ctx, h, m)
	defer func() {
		spaces, _ := shared()
		spaces.close()
	}()
	files, written := tracing.Stage(ctx, "files")
	dirs, hide, err := d.write(files, h, m, shared)
	written(err)
	defer func() {
		if err := hide(); err != nil {
			d.log.WarnContext(ctx, "what a member was made with stays mounted until the agent ends", "member", id, "error", err)
		}
	}()
	if err != nil {
		return err
	}
	failpoint.Hit("container.after-write")
	if err := d.launch(ctx, h, m, dirs); err != nil {
		// The member must not run on half made; its directories stay for Clean.
		killCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
		defer cancel()
		return errors.Join(err, d.endAll(killCtx, h, id, d.look(h, id)))
	}
	return nil
}

// launch creates the container, attaches its port and starts its first process.
func (d *Driver) launch(ctx context.Context, h *host, m driver.Member, dirs []environment.Dir) error {
	id := m.Assignment.ID
	creating, created := tracing.Stage(ctx, "create")
	pid, err := d.create(creating, h, id)
	created(err)
	if err != nil {
		return err
	}
	if err := d.adopt(h, id, pid, false); err != nil {
		return err
	}
	failpoint.Hit("container.after-create")
	if err := h.limitIO(m); err != nil { // LimitIO says so to who asks for the limits
		d.log.WarnContext(ctx, "a member starts without its limits of I/O", "member", id, "error", err)
	}
	if err := giveDirs(pid, m.Assignment.UserIDs.First, dirs); err != nil {
		return err
	}
	if m.HomeDir == "" {
		if err := makePrivateHome(pid, m); err != nil {
			return err
		}
	}
	attaching, attached := tracing.Stage(ctx, "attach")
	err = d.attach(attaching, m, pid)
	attached(err)
	if err != nil {
		return fmt.Errorf("attaching it to its network: %w", err)
	}
	failpoint.Hit("container.after-attach")
	running, ran := tracing.Stage(ctx, "run")
	err = d.runtime(running, h, id, nil, "start", id)
	ran(err)
	if err != nil {
		return err
	}
	failpoint.Hit("container.after-start")
	// From here on the member counts as running. A crash before makes it debris, which the next Start begins anew.
	if err := d.remember(m, pid, paths(m.Files)); err != nil {
		return err
	}
	failpoint.Hit("container.after-running")
	return nil
}

// checkMember refuses what could not be carried, or not safely.
func checkMember(m driver.Member) error {
	a := m.Assignment
	switch {
	case !validName(a.ID):
		return fmt.Errorf("%q is not a valid member ID; use letters, digits, '.', '_' and '-'", a.ID)
	case a.IsPart() && !a.ServesGPU():
		return fmt.Errorf("it is a part of member %s, and containers hold nothing on other nodes", a.Of)
	case a.SharesMemory && sandboxOf(a.ID) != sandboxGroup(a.ClusterUID):
		return fmt.Errorf("its ID does not begin with its cluster's, %q", a.ClusterUID)
	case len(a.CPUs) == 0 || len(a.MemoryNodes()) == 0:
		return errors.New("the assignment has no CPUs or no memory nodes")
	case a.MemoryBytes() < 16<<20:
		return fmt.Errorf("a memory limit of %d bytes is too small for a container; the minimum is 16MiB", a.MemoryBytes())
	case m.Assignment.UserIDs.First == 0 || m.Assignment.UserIDs.Count < 65536:
		return fmt.Errorf("the cluster's range of user IDs %d+%d must have 65536 IDs and not start at the host's", m.Assignment.UserIDs.First, m.Assignment.UserIDs.Count)
	case m.HomeDir != "" && !filepath.IsAbs(m.HomeDir) || !filepath.IsAbs(m.ControlDir):
		return fmt.Errorf("the home (%q) and control (%q) directories must be absolute paths", m.HomeDir, m.ControlDir)
	case path.Base(m.User.Name) != m.User.Name || m.User.Name == "" || m.User.Name[0] == '.':
		return fmt.Errorf("%q is not a valid user name", m.User.Name)
	}
	if err := driver.CheckMounts(m.Mounts); err != nil {
		return err
	}
	return checkFunctions(&a)
}

// The files of a member's directory in the state directory; all else of it is staged (see spawner) or its home.
const (
	fileMember = "member.json" // the record, once the first process was let go
	fileOutput = "output.log"  // what the first process printed
	fileExit   = "exit-code"   // of the first process, when it is known
	fileBinds  = "binds.json"  // where entries of its image's /etc are mounted
	// fileAccounts has the accounts of its image.
	fileAccounts = "accounts.json"
)

func (d *Driver) dir(id string) string        { return filepath.Join(d.members, id) }
func (d *Driver) path(id, name string) string { return filepath.Join(d.members, id, name) }

// write makes everything the runtime needs. It returns the directories that are to be given to others than its root, and a function that takes away
// what the runtime needs only while it makes the member, which is called in any case.
func (d *Driver) write(ctx context.Context, h *host, m driver.Member, shared func() (*sharedSpaces, error)) (dirs []environment.Dir, hide func() error, err error) {
	id := m.Assignment.ID
	hide = func() error { return nil }
	root, err := d.rootOf(ctx, h, m)
	if err != nil {
		return nil, hide, fmt.Errorf("environment %q: %w", m.Assignment.Environment, err)
	}
	if root, err = withPlaces(root, m.Mounts); err != nil {
		return nil, hide, fmt.Errorf("environment %q: %w", m.Assignment.Environment, err)
	}
	if m, err = d.withAccounts(m); err != nil {
		return nil, hide, err
	}
	plan, err := planEtc(m.Files, root, isSmallFile)
	if err != nil {
		return nil, hide, err
	}
	if err := errors.Join(prepareHome(m), makeSocketDir(&m)); err != nil {
		return nil, hide, err
	}
	if m.Assignment.EnvironmentDigest != "" {
		targets := []string{}
		for _, b := range plan.binds {
			targets = append(targets, b.Target)
		}
		if err := writeJSON(d.path(id, fileBinds), targets); err != nil {
			return nil, hide, err
		}
	}
	spaces, err := shared()
	if err != nil {
		return nil, hide, err
	}
	staged := h.spawner.memberDir(id)
	devices, err := d.attachFunctions(ctx, m)
	if err != nil {
		return nil, hide, fmt.Errorf("attaching it to its network: %w", err)
	}
	edits, cache, err := d.stageGPUs(ctx, h, m, plan)
	if err != nil {
		return nil, hide, err
	}
	shown, hide, err := h.showDirs(ctx, m)
	if err != nil {
		return nil, hide, err
	}
	spec, err := renderSpec(specInput{
		member: shown, devices: devices, gpus: edits, loaderCache: cache, root: root, rootDir: filepath.Join(staged, "root"), etcBinds: plan.binds, memberBinary: d.cfg.MemberBinary, rankLibrary: d.cfg.RankLibrary,
		args: d.cfg.MemberArgs, cgroupPath: h.cgroups.RuntimePath(id), limits: h.limits, shared: spaces,
	})
	if err != nil {
		return nil, hide, err
	}
	return root.Dirs, hide, stage(h.spawner.outside(staged), m, root, plan, spec)
}

// rootOf is what a member's root is made of.
func (d *Driver) rootOf(ctx context.Context, h *host, m driver.Member) (environment.Root, error) {
	if m.Assignment.EnvironmentDigest != "" {
		return d.imageRoot(ctx, h, m)
	}
	env, err := d.cfg.Environments.Lookup(m.Assignment.Environment)
	if err != nil {
		return environment.Root{}, err
	}
	return env.Root(ctx)
}

// stage makes a member's root and OCI bundle; whatever was there of a former start is gone by now.
func stage(dir string, m driver.Member, root environment.Root, plan etcPlan, spec *specs.Spec) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	rootDir := filepath.Join(dir, "root")
	if err := makeSkeleton(rootDir, m.Assignment.UserIDs.First, root); err != nil {
		return err
	}
	if m.HomeDir == "" {
		home, owner := filepath.Join(rootDir, "home", m.User.Name), int(m.Assignment.UserIDs.First)
		if err := errors.Join(os.Mkdir(home, 0o755), os.Lchown(home, owner, owner)); err != nil {
			return fmt.Errorf("making its private home: %w", err)
		}
	}
	if err := fillEtc(rootDir, m, plan); err != nil {
		return err
	}
	return writeJSON(filepath.Join(dir, "config.json"), spec)
}

// create has the runtime make the container, its first process waiting to be started, and returns that process' PID.
func (d *Driver) create(ctx context.Context, h *host, id string) (int, error) {
	output, err := os.OpenFile(d.path(id, fileOutput), os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	defer output.Close()
	staged := h.spawner.memberDir(id)
	pidFile := filepath.Join(staged, "pid")
	if err := d.runtime(ctx, h, id, output, "create", "--bundle", staged, "--pid-file", pidFile, id); err != nil {
		return 0, err
	}
	return readPID(h.spawner.outside(pidFile))
}

func readPID(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("%s holds %q instead of a process ID", path, text)
	}
	return pid, nil
}

// killTimeout bounds how long processes ended by force are waited for; only the kernel can delay them.
const killTimeout = 30 * time.Second
