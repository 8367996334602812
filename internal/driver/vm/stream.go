package vm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/digitalocean/go-libvirt"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// A machine's memory and devices leave it, and come into another, as a stream that QEMU writes and reads: its migration. Whether the other end is
// a file or another host makes no difference to either. The source is told by QEMU's own protocol (QMP) to migrate to a socket of this process;
// libvirt would want another libvirtd at the other end. The destination is libvirt's half of a migration: Prepare and Finish. It gets a cookie that
// is made here, so that nothing that another host says comes to libvirtd.

// fileOut is the socket, in dirRun, that a machine's state leaves by.
const fileOut = "out.sock"

// incoming is where QEMU makes the socket by which its state comes, in libvirtd's mount namespace.
func (v view) incoming() string { return filepath.Join(v.dir, "in", "s") }

const (
	// endPatience bounds ending a migration, whatever became of it, and lookAgain is the pause between looks.
	endPatience = time.Minute
	lookAgain   = 20 * time.Millisecond
	// noLimit is QEMU's bandwidth where none is asked for.
	noLimit = 1 << 40
)

// outgoing is a machine all of whose state has left it. It stands still.
type outgoing struct {
	d    *Driver
	host *daemon
	id   string
	was  driver.State
	// member is what goes on here if the migration is cancelled.
	member driver.Member
	// stats are QEMU's.
	stats migration
	// since is when it was seen that all has left. stands is when it was made to stand still before anything left; zero: it ran until the end.
	since, stands time.Time
}

// stoodStill returns how long it has stood still.
func (o *outgoing) stoodStill() time.Duration {
	if !o.stands.IsZero() {
		return time.Since(o.stands)
	}
	return time.Duration(o.stats.DowntimeMs)*time.Millisecond + time.Since(o.since)
}

// migration is what QEMU says of one (query-migrate).
type migration struct {
	Status     string `json:"status"`
	DowntimeMs int64  `json:"downtime"`
	RAM        struct {
		Transferred int64 `json:"transferred"`
		Rounds      int   `json:"dirty-sync-count"`
	} `json:"ram"`
	Why string `json:"error-desc"`
}

func (m migration) ended() bool {
	return m.Status == "completed" || m.Status == "failed" || m.Status == "cancelled" || m.Status == "" || m.Status == "none"
}

// leave lets the state of a machine out to to. One that runs meanwhile does so until the end, others stand still from the beginning. On error it goes on
// as before.
func (d *Driver) leave(ctx context.Context, host *daemon, id string, seen sight, to io.Writer, runs bool, limits driver.MoveLimits) (*outgoing, error) {
	o := &outgoing{d: d, host: host, id: id, was: seen.state, member: *seen.member}
	if err := d.unplugFunctions(ctx, host, id, seen); err != nil {
		return nil, errors.Join(err, d.plugAgain(context.WithoutCancel(ctx), host, o.member))
	}
	listener, err := d.listenOut(id, int(seen.member.Assignment.UserIDs.First))
	if err != nil {
		return nil, errors.Join(err, d.plugAgain(context.WithoutCancel(ctx), host, o.member))
	}
	defer func() { _ = errors.Join(listener.Close(), os.RemoveAll(d.path(id, filepath.Join(dirRun, fileOut)))) }()
	if !runs && seen.state == driver.StateRunning {
		o.stands = time.Now()
		err := host.domain(ctx, id, func(rpc *libvirt.Libvirt, domain libvirt.Domain) error { return rpc.DomainSuspend(domain) })
		if err != nil {
			return nil, errors.Join(err, d.plugAgain(context.WithoutCancel(ctx), host, o.member))
		}
	}
	if err := o.run(ctx, listener, to, runs, limits); err != nil {
		return nil, errors.Join(err, o.cancel(ctx))
	}
	return o, nil
}

// listenOut makes the socket that a machine's state leaves by, which its QEMU may connect to and nobody else may find.
func (d *Driver) listenOut(id string, user int) (net.Listener, error) {
	run := d.path(id, dirRun)
	dir, err := os.Open(run)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	at := filepath.Join(run, fileOut)
	if err := errors.Join(dir.Chmod(0o711), os.RemoveAll(at)); err != nil {
		return nil, err
	}
	// By a path that is short enough, see socket.
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), fileOut), Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	return listener, os.Lchown(at, user, user)
}

// run is the migration.
func (o *outgoing) run(ctx context.Context, listener net.Listener, to io.Writer, runs bool, limits driver.MoveLimits) error {
	copied := make(chan error, 1)
	go func() { copied <- copyState(ctx, listener, to) }()
	for _, c := range o.commands(runs, limits) {
		if err := o.tell(ctx, c, nil); err != nil {
			return errors.Join(err, listener.Close(), <-copied)
		}
	}
	// The connection ends with the migration, either way.
	err := <-copied
	o.since = time.Now()
	stats, endErr := o.ended(ctx)
	o.stats = stats
	if err := errors.Join(err, endErr); err != nil {
		return err
	}
	if stats.Status != "completed" {
		return fmt.Errorf("QEMU says that its state has %s: %s", stats.Status, stats.Why)
	}
	return nil
}

// command is one of QMP.
type command struct {
	Execute   string `json:"execute"`
	Arguments any    `json:"arguments,omitempty"`
}

// commands begin the migration.
func (o *outgoing) commands(runs bool, limits driver.MoveLimits) []command {
	type capability struct {
		Name string `json:"capability"`
		On   bool   `json:"state"`
	}
	parameters := map[string]any{"max-bandwidth": int64(noLimit)}
	if limits.BytesPerSecond > 0 {
		parameters["max-bandwidth"] = limits.BytesPerSecond
	}
	if runs {
		parameters["downtime-limit"] = max(1, cmp.Or(limits.Downtime, driver.DefaultDowntime).Milliseconds())
	}
	return []command{
		{"migrate-set-capabilities", map[string]any{"capabilities": []capability{
			{"return-path", false}, {"pause-before-switchover", false}, {"auto-converge", runs}, {"events", true},
		}}},
		{"migrate-set-parameters", parameters},
		{"migrate", map[string]any{"uri": "unix:" + viewOf(o.id).run(fileOut)}},
	}
}

func (o *outgoing) tell(ctx context.Context, c command, result any) error {
	return o.host.tell(ctx, o.id, c, result)
}

// tell gives the QEMU of a machine a command. libvirt passes it on.
func (d *daemon) tell(ctx context.Context, id string, c command, result any) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	var answer string
	err = d.domain(ctx, id, func(rpc *libvirt.Libvirt, domain libvirt.Domain) (err error) {
		answer, err = rpc.QEMUDomainMonitorCommand(domain, string(text), 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("QEMU, %s: %w", c.Execute, err)
	}
	said := struct {
		Return any `json:"return"`
		Error  *struct {
			Why string `json:"desc"`
		} `json:"error"`
	}{Return: result}
	if err := json.Unmarshal([]byte(answer), &said); err != nil {
		return fmt.Errorf("QEMU, %s: %w", c.Execute, err)
	}
	if said.Error != nil {
		return fmt.Errorf("QEMU refuses %s: %s", c.Execute, said.Error.Why)
	}
	return nil
}

// ended returns once the migration has, with what became of it.
func (o *outgoing) ended(ctx context.Context) (stats migration, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endPatience)
	defer cancel()
	for {
		stats = migration{}
		if err := o.tell(ctx, command{Execute: "query-migrate"}, &stats); err != nil || stats.ended() {
			return stats, err
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return stats, ctx.Err()
		}
	}
}

// copyState takes the one connection of a listener and copies what comes over it. What can't be written ends the connection, and so the migration.
func copyState(ctx context.Context, listener net.Listener, to io.Writer) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	conn, err := listener.Accept()
	stop()
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_, err = io.Copy(to, conn)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return err
}

// cancel lets the machine go on where it was.
func (o *outgoing) cancel(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endPatience)
	defer cancel()
	if err := o.tell(ctx, command{Execute: "migrate_cancel"}, nil); err != nil {
		return err
	}
	if _, err := o.ended(ctx); err != nil || o.was == driver.StatePaused {
		return err
	}
	if err := o.d.goOn(ctx, o.host, o.id); err != nil {
		return err
	}
	return o.d.plugAgain(ctx, o.host, o.member)
}

// goOn lets a machine's processors run, whatever stopped them.
func (d *Driver) goOn(ctx context.Context, host *daemon, id string) error {
	err := host.domain(ctx, id, func(rpc *libvirt.Libvirt, domain libvirt.Domain) error { return rpc.DomainResume(domain) })
	if invalidOperation(err) {
		return nil // they run
	}
	return err
}

// incoming is a machine that waits for its state, and stands still when it has it.
type incoming struct {
	host   *daemon
	params []libvirt.TypedParam // which name it to libvirt
	cookie []byte
	conn   net.Conn
}

// incomingFlags: a machine that got its state stands still until it is told to go on. Its only disks are read-only ones, which all hosts have.
const incomingFlags = uint32(libvirt.MigratePaused | libvirt.MigrateUnsafe)

// receive makes a machine that waits for its state.
func (d *Driver) receive(ctx context.Context, host *daemon, id, text string, user int) (*incoming, error) {
	at := viewOf(id).incoming()
	err := host.do(func() error {
		// QEMU makes the socket there.
		return errors.Join(os.Mkdir(filepath.Dir(at), 0o700), os.Chown(filepath.Dir(at), user, user))
	})
	if err != nil {
		return nil, err
	}
	i := &incoming{host: host, cookie: d.cookie(id), params: []libvirt.TypedParam{
		textParam(libvirt.MigrateParamURI, "unix://"+at), textParam(libvirt.MigrateParamDestName, id), textParam(libvirt.MigrateParamDestXML, text),
	}}
	err = host.call(context.WithoutCancel(ctx), func(rpc *libvirt.Libvirt) error {
		_, _, err := rpc.DomainMigratePrepare3Params(i.params, i.cookie, incomingFlags)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("libvirt can't make the machine: %w", err)
	}
	if i.conn, err = host.dial(at); err != nil {
		return nil, errors.Join(fmt.Errorf("connecting to the machine: %w", err), i.finish(ctx, 1))
	}
	return i, nil
}

// cookie is what libvirt believes of the other side: a host that has no abilities which both sides would need. libvirt 9.0 fails without one.
func (d *Driver) cookie(id string) []byte {
	const anotherHost = "00000000-0000-4000-8000-000000000001"
	return fmt.Appendf(nil, "<qemu-migration><name>%s</name><uuid>%s</uuid><hostname>another</hostname><hostuuid>%s</hostuuid><capabilities/></qemu-migration>\x00",
		id, uuidText(d.domainUUID(id)), anotherHost)
}

// Write gives it a piece of its state.
func (i *incoming) Write(p []byte) (int, error) { return i.conn.Write(p) }

// complete ends the state and returns once the machine has it.
func (i *incoming) complete(ctx context.Context) error {
	_ = i.conn.Close()
	return i.finish(ctx, 0)
}

// cancel gives the machine up.
func (i *incoming) cancel(ctx context.Context) error {
	_ = i.conn.Close()
	return i.finish(ctx, 1)
}

func (i *incoming) finish(ctx context.Context, cancelled int32) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endPatience)
	defer cancel()
	err := i.host.call(ctx, func(rpc *libvirt.Libvirt) error {
		_, _, err := rpc.DomainMigrateFinish3Params(i.params, i.cookie, incomingFlags, cancelled)
		return err
	})
	if cancelled != 0 {
		return nil // libvirt reports what it was asked to give up as a failure
	}
	return err
}

func textParam(name, value string) libvirt.TypedParam {
	return libvirt.TypedParam{Field: name, Value: *libvirt.NewTypedParamValueString(value)}
}

// dial connects to a Unix socket in the namespace.
func (d *daemon) dial(at string) (conn net.Conn, err error) {
	err = d.do(func() error {
		// On this thread, whatever package net does.
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		file := os.NewFile(uintptr(fd), at)
		defer func() { _ = file.Close() }()
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: at}); err != nil {
			return err
		}
		conn, err = net.FileConn(file)
		return err
	})
	return conn, err
}
