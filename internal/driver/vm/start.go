package vm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
	"github.com/nearmetal/nearmetal/internal/tracing"
)

// The files of a member's directory. libvirt makes the sockets in dirRun and hands them to QEMU, which can't put anything there: whatever a guest
// makes of its QEMU, the agent connects to that QEMU and to nobody else.
const (
	fileMember = "member.json" // the record, once the guest had its setup
	dirRun     = "run"
	// dirLink has the socket that leads QEMU to the server of the home, in which the cluster's user, who QEMU is, can't put anything either.
	dirLink  = "link"
	fileHome = "home.sock"
	// fileGuest is the socket that leads to the guest's boot agent, fileConsole the one to its serial console.
	fileGuest   = "guest.sock"
	fileConsole = "console.sock"
)

// Start makes the member's ports, starts its machine, and gives the guest its setup once it has booted that far. A crash between any two of these
// leaves debris that Observe shows as prepared; the next Start begins anew.
func (d *Driver) Start(ctx context.Context, m driver.Member) error {
	if err := d.start(ctx, m); err != nil {
		return fmt.Errorf("starting member %q: %w", m.Assignment.ID, err)
	}
	return nil
}

func (d *Driver) start(ctx context.Context, m driver.Member) error {
	id := m.Assignment.ID
	if err := checkBeginner(m); err != nil {
		return err
	}
	image, err := d.image(m)
	if err != nil {
		return err
	}
	if err := d.checkModel(ctx, m.Assignment.CPUModel); err != nil {
		return err
	}
	host, seen, done, err := d.meet(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	switch seen.state {
	case driver.StateRunning, driver.StatePaused:
		return nil
	case driver.StateSaved, driver.StateHandedOver:
		return fmt.Errorf("the member is %s; starting it would lose its memory", seen.state)
	case driver.StatePrepared, driver.StateExited:
		if err := d.endMachine(ctx, host, id); err != nil {
			return fmt.Errorf("removing the remains of an earlier start: %w", err)
		}
	}
	return d.begin(ctx, host, m, image, d.writeForeign)
}

// begin makes the member's view and starts its machine. A foreign member's files are written by writeForeign.
func (d *Driver) begin(
	ctx context.Context, host *daemon, m driver.Member, image environment.Image,
	writeForeign func(context.Context, *daemon, driver.Member, environment.Image) error,
) error {
	write, launch := d.writeWithControl, d.launch
	if image.Disk != nil {
		if m.GPUServer != nil {
			return errors.New("it has the disk of another system, without an agent to mount the programs by which remote GPUs are used")
		}
		write, launch = writeForeign, d.launchForeign
	}
	if err := write(ctx, host, m, image); err != nil {
		return err
	}
	failpoint.Hit("vm.after-write")
	if err := launch(ctx, host, m, image); err != nil {
		// The member must not run on half made; its directory stays for Clean.
		return errors.Join(err, d.kill(ctx, host, m.Assignment.ID))
	}
	return nil
}

// checkBeginner refuses a member that can't be carried, or must not begin anew because another one still is what it is to go on from.
func checkBeginner(m driver.Member) error {
	if err := checkMember(m); err != nil {
		return err
	}
	if m.Assignment.IsSuccessor() {
		return fmt.Errorf("it is to go on from member %s, and must not start while that one exists", m.Assignment.From)
	}
	return nil
}

// checkMember refuses what could not be carried, or not safely.
func checkMember(m driver.Member) error {
	a := m.Assignment
	switch {
	case !validName(a.ID):
		return fmt.Errorf("%q is not a valid member ID; use letters, digits, '.', '_' and '-'", a.ID)
	case a.IsPart() && !a.IsSuccessor():
		return fmt.Errorf("it is a part of member %s, and virtual machines hold nothing on other nodes", a.Of)
	case len(a.CPUs) == 0:
		return errors.New("the assignment has no CPUs")
	case a.MemoryBytes() < leastMemory:
		return fmt.Errorf("%d MiB of memory are too few for a virtual machine, whose root's changes are in memory, too; the minimum is %d MiB", a.MemoryBytes()>>20, leastMemory>>20)
	case a.UserIDs.First == 0:
		return errors.New("the cluster has no user IDs of its own; QEMU must not run as the host's root")
	case a.EnvironmentDigest == "":
		return fmt.Errorf("environment %q has no kernel, which a virtual machine needs; build one that has: nearmetal env build debian-mpi", a.Environment)
	case len(a.Ports) == 0 || len(a.Ports) > len(m.Networks):
		return fmt.Errorf("it has %d ports and %d networks", len(a.Ports), len(m.Networks))
	case m.HomeDir != "" && !filepath.IsAbs(m.HomeDir) || !filepath.IsAbs(m.ControlDir):
		return fmt.Errorf("the home (%q) and control (%q) directories must be absolute paths", m.HomeDir, m.ControlDir)
	case path.Base(m.User.Name) != m.User.Name || m.User.Name == "" || m.User.Name[0] == '.':
		return fmt.Errorf("%q is not a valid user name", m.User.Name)
	}
	return errors.Join(driver.CheckMounts(m.Mounts), checkGPUs(&a), driver.CheckDevices(&a, api.ClassGPU))
}

// StartTime bounds how long a machine may take to boot; it implements driver.SlowStarter. A kernel boots in seconds where processors are virtualized,
// and in minutes where they are emulated and the host has other work: eight at once take 72 s of processor time, which is six minutes with a tenth of two cores.
// A host that is a virtual machine itself may be emulated, too.
func (d *Driver) StartTime() time.Duration {
	if d.cfg.Accelerate() == nil && !d.cfg.InMachine() {
		return time.Minute
	}
	return 15 * time.Minute
}

// leastMemory is what a Debian kernel, its initial RAM disk and an SSH session take.
const leastMemory = 192 << 20

// image is the member's image, with its kernel.
func (d *Driver) image(m driver.Member) (environment.Image, error) {
	if d.cfg.Images == nil {
		return environment.Image{}, errors.New("built environments are disabled on this node")
	}
	image, err := d.cfg.Images.Image(m.Assignment.EnvironmentDigest)
	if err != nil {
		return image, fmt.Errorf("environment %q: %w", m.Assignment.Environment, err)
	}
	if image.Disk != nil && len(image.Layers) == 1 {
		return image, nil
	}
	if image.Kernel == nil {
		return image, fmt.Errorf("environment %q has no kernel on this node: its recipe does not name the stack vm, or the machine booted from it", m.Assignment.Environment)
	}
	if len(image.Layers) > guestlink.MaxRoots {
		return image, fmt.Errorf("environment %q has %d layers; a virtual machine takes %d", m.Assignment.Environment, len(image.Layers), guestlink.MaxRoots)
	}
	return image, nil
}

// write makes the member's directory and its view.
func (d *Driver) write(ctx context.Context, host *daemon, m driver.Member, image environment.Image) (err error) {
	_, written := tracing.Stage(ctx, "files")
	defer func() { written(err) }()
	id, user := m.Assignment.ID, int(m.Assignment.UserIDs.First)
	if err := os.RemoveAll(d.dir(id)); err != nil {
		return err
	}
	run, link := d.path(id, dirRun), d.path(id, dirLink)
	if err := errors.Join(os.MkdirAll(d.dir(id), 0o711), os.Mkdir(run, 0o700), os.Mkdir(link, 0o711)); err != nil {
		return err
	}
	if err := giveHome(m.HomeDir, user); err != nil {
		return err
	}
	initrd, err := d.initrd(image)
	if err != nil {
		return err
	}
	v := viewOf(id)
	all := []shown{
		{path: image.Kernel.Path, at: v.kernel(), readOnly: true},
		{path: initrd, at: v.initrd(), readOnly: true},
		{path: link, at: v.link(""), readOnly: true},
		{path: run, at: v.run("")},
	}
	if m.Assignment.Display {
		if err := d.makeDisplayDir(id, user); err != nil {
			return err
		}
		all = append(all, shown{path: d.path(id, dirDisplay), at: v.display("")})
	}
	for n, l := range image.Layers {
		all = append(all, shown{path: l.Path, at: v.root(n), readOnly: true})
	}
	return host.show(v, append(all, shownDisks(m, v)...))
}

// writeWithControl is write for a member that starts here: its agent has the way to the node's.
func (d *Driver) writeWithControl(ctx context.Context, host *daemon, m driver.Member, image environment.Image) error {
	if err := d.write(ctx, host, m, image); err != nil {
		return err
	}
	return d.showControl(host, m)
}

// showControl adds the member agent's socket to the member's view.
func (d *Driver) showControl(host *daemon, m driver.Member) error {
	return host.add([]shown{{path: m.ControlDir, at: viewOf(m.Assignment.ID).control(), readOnly: true}})
}

// giveHome gives the shared home to the cluster, if there is one and it is still the host root's. The name is not followed if it is a link.
func giveHome(dir string, user int) error {
	if dir == "" {
		return nil
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("shared home: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("shared home: %s is no directory", dir)
	}
	if uid, ok := ownerOf(info); !ok || uid != 0 {
		return nil
	}
	return os.Lchown(dir, user, user)
}

// launch attaches the member's ports, starts its machine, and gives the guest its setup.
func (d *Driver) launch(ctx context.Context, host *daemon, m driver.Member, image environment.Image) error {
	id, h := m.Assignment.ID, d.hardware()
	c := newChassis(&m.Assignment, h)
	functions, err := d.plugIn(ctx, m, c.queues(&m.Assignment))
	if err != nil {
		return err
	}
	setup, err := d.setupOf(m)
	if err != nil {
		return err
	}
	machine := newDomain(m, image, viewOf(id), uuidText(d.domainUUID(id)), h, c)
	machine.take(functions)
	if machine.GPUs, err = d.takeGPUs(ctx, m); err != nil {
		return err
	}
	text, err := machine.xml()
	if err != nil {
		return err
	}
	if err := d.confine(&m.Assignment); err != nil {
		return err
	}
	if err := d.keepHome(ctx, m); err != nil {
		return err
	}
	creating, created := tracing.Stage(ctx, "create")
	err = d.create(creating, host, m, text)
	created(err)
	if err != nil {
		return err
	}
	booting, booted := tracing.Stage(ctx, "boot")
	err = d.boot(booting, host, id, setup)
	booted(err)
	if err != nil {
		return err
	}
	failpoint.Hit("vm.after-setup")
	// From here on the member counts as running. A crash before makes it debris, which the next Start begins anew.
	fits, err := d.shapeOf(ctx, host, m, image, c)
	if err != nil {
		return err
	}
	if err := d.remember(m, &fits); err != nil {
		return err
	}
	failpoint.Hit("vm.after-running")
	return nil
}

// create starts the machine within its control groups, which are there.
func (d *Driver) create(ctx context.Context, host *daemon, m driver.Member, text string) error {
	err := host.call(ctx, func(rpc *libvirt.Libvirt) error {
		_, err := rpc.DomainCreateXML(text, libvirt.DomainStartPaused)
		return err
	})
	if err != nil {
		return fmt.Errorf("libvirt can't start the machine: %w%s", err, pagesText(&m.Assignment))
	}
	failpoint.Hit("vm.after-create")
	return d.release(ctx, host, &m.Assignment)
}

// boot gives the guest its setup, and says what the console showed last if the guest does not take it.
func (d *Driver) boot(ctx context.Context, host *daemon, id string, setup guestlink.Setup) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pid, err := d.pid(id)
	if err != nil {
		return err
	}
	if _, err := d.console(id); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { // a machine that ends instead
		err := waitProcess(ctx, pid)
		if err == nil {
			ended <- errors.New("the machine went off while it booted")
			cancel()
		}
	}()
	if err := d.guest(id).client.Setup(ctx, setup); err != nil {
		select {
		case err = <-ended:
		default:
		}
		return fmt.Errorf("%w; its console showed last: %s", err, d.printed(id))
	}
	return nil
}

// plugIn makes the member's ports, before there is a machine.
func (d *Driver) plugIn(ctx context.Context, m driver.Member, queues int) ([]hostDevice, error) {
	attaching, attached := tracing.Stage(ctx, "attach")
	err := d.attach(attaching, m, queues)
	var functions []hostDevice
	if err == nil {
		functions, err = d.attachFunctions(attaching, m)
	}
	attached(err)
	if err != nil {
		return nil, fmt.Errorf("attaching it to its network: %w", err)
	}
	failpoint.Hit("vm.after-attach")
	return functions, nil
}

// attach makes the member's ports that have devices on the node, with so many queues each.
func (d *Driver) attach(ctx context.Context, m driver.Member, queues int) error {
	for n := range m.Assignment.Ports {
		port := fabric.PortOf(&m.Assignment, n)
		if !hasNIC(port) {
			continue
		}
		if err := d.cfg.Attacher.Attach(ctx, port, placeOf(port, queues)); err != nil {
			return err
		}
	}
	return nil
}

// record is what is kept of a started member, for recovery.
type record struct {
	// Member is what it was started with, without its files.
	Member driver.Member `json:"member"`
	// Shape is what its memory fits.
	Shape *shape `json:"shape,omitempty"`
	// Threads is how many processors the emulating QEMU has run, also those that have gone; 0: as many as the machine has.
	Threads int `json:"threads,omitempty"`
	// Foreign is set for a member that has no agent in it, StartedAt when its machine was started, and Ready once its probe has succeeded.
	Foreign   *api.ForeignDisk `json:"foreign,omitempty"`
	StartedAt *time.Time       `json:"started_at,omitempty"`
	Ready     bool             `json:"ready,omitempty"`
}

// chassis returns that of the member's machine, nil where its size is fixed.
func (r record) chassis() *chassis {
	if r.Shape == nil {
		return nil
	}
	return r.Shape.Chassis
}

func (d *Driver) remember(m driver.Member, fits *shape) error {
	return d.writeRecord(m.Assignment.ID, record{Member: m, Shape: fits})
}

// writeRecord writes what is kept of a member.
func (d *Driver) writeRecord(id string, r record) error {
	r.Member.Files = nil
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	at := d.path(id, fileMember)
	if err := os.WriteFile(at+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(at+".new", at)
}

// recall reads what remember wrote; fs.ErrNotExist for a member that was never started.
func (d *Driver) recall(id string) (record, error) {
	var r record
	data, err := os.ReadFile(d.path(id, fileMember))
	if errors.Is(err, fs.ErrNotExist) && !isMissing(d.path(id, fileOrigin)) {
		data, err = os.ReadFile(d.path(id, fileComing)) // killed at once after it became this host's
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("reading %s: %w", fileMember, err)
	}
	return r, err
}

// setupOf is what the guest is given. A member's own root is the guest's root: unlike in a container its files belong to the IDs that they name.
func (d *Driver) setupOf(m driver.Member) (guestlink.Setup, error) {
	a := &m.Assignment
	s := guestlink.Setup{
		Hostname: a.Member,
		Dirs:     []guestlink.Dir{{Path: path.Join("/home", m.User.Name), Mode: 0o700, UID: m.User.UID, GID: m.User.GID}},
		Program:  []string{guestlink.ProgramInGuest}, WatchdogSeconds: int(cmp.Or(d.cfg.Watchdog, watchdogTime) / time.Second),
	}
	if m.HomeDir != "" {
		s.Home = "/home"
	}
	s.Volumes = volumesOf(m)
	if err := d.withFrontEnds(&s, m); err != nil {
		return s, err
	}
	for n := range a.Ports {
		port := fabric.PortOf(a, n)
		i := slices.IndexFunc(m.Networks, func(network networkOf) bool { return network.UID == a.Ports[n].Network })
		if i < 0 {
			return s, fmt.Errorf("network %s of its port %d is unknown", a.Ports[n].Network, n)
		}
		mtu, err := portMTU(port, m.Networks[i])
		if err != nil {
			return s, err
		}
		nic := guestlink.Interface{
			MAC: port.MAC, Name: port.Interface, Address: prefixOf(port.Address, m.Networks[i].Prefix), MTU: mtu,
			GUID: port.Function.GUID, Comes: isPassedThrough(port) && !port.Standby, Standby: port.Standby,
		}
		nic.PKey, nic.Connected = ipoibOf(m.Networks[i])
		if six := m.Networks[i].Address6(port.Address); six.IsValid() {
			nic.Address6 = netip.PrefixFrom(six, api.Prefix6Bits)
		}
		if nic.Routes = api.GatewayRoutes(m.Networks, i); len(nic.Routes) > 0 {
			nic.Gateway = m.Networks[i].Gateway
		}
		s.Interfaces = append(s.Interfaces, nic)
	}
	for _, disk := range m.Disks {
		s.Disks = append(s.Disks, guestlink.Disk{Name: disk.Name, Path: disk.Path, ReadOnly: disk.ReadOnly, UID: m.User.UID, GID: m.User.GID})
	}
	for _, f := range m.Files {
		file := guestlink.File{Path: f.Path, Content: f.Content, Mode: f.Mode}
		if f.OwnedByUser {
			file.UID, file.GID = m.User.UID, m.User.GID
		}
		s.Files = append(s.Files, file)
	}
	return s, nil
}
