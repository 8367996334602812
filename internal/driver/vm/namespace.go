package vm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// libvirtdConf: nobody but root talks to it, and it says what matters to its standard error. host_uuid is added.
const libvirtdConf = `unix_sock_group = "root"
unix_sock_rw_perms = "0700"
auth_unix_ro = "none"
auth_unix_rw = "none"
log_outputs = "3:stderr"
`

// qemuConf: machines say themselves as whom QEMU runs, and files belong to whom they belong. Control groups and namespaces are not made: QEMU has
// the namespace of libvirtd, in which there is nothing to be had but its member's view, and its processors by affinity.
const qemuConf = `user = "nobody"
group = "nogroup"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
namespaces = []
cgroup_controllers = []
stdio_handler = "file"
max_core = 0
`

// libvirtAccounts are those that libvirtd was built to look for when it starts, though it uses none of them here.
var libvirtAccounts = []struct {
	name string
	id   int
}{{"libvirt-qemu", 64055}, {"libvirt", 64056}, {"kvm", 64057}}

// enter moves the calling thread, which must be one of its own, into a mount namespace of libvirtd's. What is below /run, /etc and /var there is
// in memory or one of the trees, so that the host is left as it is. kvm is set where processors are virtualized.
func enter(trees []int, uuid string, kvm bool) error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("making / a slave mount: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return fmt.Errorf("mounting a tmpfs on /run: %w", err)
	}
	for _, top := range []string{"/etc", "/var/lib", "/var/log", "/var/cache"} {
		upper, work := filepath.Join("/run/private", top, "upper"), filepath.Join("/run/private", top, "work")
		if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
			return err
		}
		if err := unix.Mount("overlay", top, "overlay", 0, "lowerdir="+top+",upperdir="+upper+",workdir="+work); err != nil {
			return fmt.Errorf("mounting an overlay on %s: %w", top, err)
		}
	}
	for i, k := range kept {
		if err := os.MkdirAll(k.at, 0o755); err != nil {
			return err
		}
		if err := moveTree(trees[i], k.at); err != nil {
			return err
		}
	}
	if err := errors.Join(os.MkdirAll("/etc/libvirt", 0o755), os.MkdirAll("/var/log/libvirt/qemu", 0o755), os.MkdirAll("/run/home", 0o700), os.MkdirAll(views, 0o711)); err != nil {
		return err
	}
	for name, text := range map[string]string{"libvirtd.conf": libvirtdConf + "host_uuid = \"" + uuid + "\"\n", "qemu.conf": qemuConf} {
		if err := os.WriteFile(filepath.Join("/etc/libvirt", name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	if err := errors.Join(addAccounts("/etc/passwd", "%s:x:%d:%[2]d::/nonexistent:/usr/sbin/nologin\n"), addAccounts("/etc/group", "%s:x:%d:\n")); err != nil {
		return err
	}
	if err := nameLocally(); err != nil {
		return err
	}
	return showKVM("/dev/kvm", "/run/kvm", kvm)
}

// addAccounts adds the accounts that a file lacks.
func addAccounts(file, line string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		text = append(text, '\n')
	}
	for _, a := range libvirtAccounts {
		if !strings.Contains("\n"+string(text), "\n"+a.name+":") {
			text = fmt.Appendf(text, line, a.name, a.id)
		}
	}
	return os.WriteFile(file, text, 0o644)
}

// nameLocally has names looked up in files only. Before each start libvirtd asks for the address of its own host, to note it in the machine's log:
// where the resolver's servers are out of reach, that takes five seconds or more.
func nameLocally() error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile("/etc/hosts", []byte("127.0.0.1 localhost\n127.0.1.1 "+host+"\n"), 0o644),
		os.WriteFile("/etc/nsswitch.conf", []byte("passwd: files\ngroup: files\nhosts: files\n"), 0o644),
	)
}

// showKVM shows the namespace the device of KVM: to all users where processors are virtualized, as QEMU runs as the cluster's. Where they are
// emulated, a device that nobody can open takes its place, root included. On the host nothing changes.
//
// A device that opens and yet runs no machine leads libvirtd 9.0 astray: before each use it doubts what it knows of QEMU, and starts QEMU twice to
// ask for its abilities. That takes seconds of each start.
func showKVM(device, private string, usable bool) error {
	var stat unix.Stat_t
	if unix.Stat(device, &stat) != nil {
		return nil
	}
	mode, number := os.FileMode(0), uint64(0) // no driver has the number 0: open(2) fails with ENXIO
	if usable {
		mode, number = 0o666, stat.Rdev
	}
	if err := unix.Mknod(private, unix.S_IFCHR, int(number)); err != nil {
		return fmt.Errorf("making a device for KVM: %w", err)
	}
	if err := errors.Join(os.Chmod(private, mode), unix.Mount(private, device, "", unix.MS_BIND, "")); err != nil {
		return fmt.Errorf("showing machines the device of KVM: %w", err)
	}
	return nil
}

// moveTree mounts a tree that is mounted nowhere (open_tree(2)).
func moveTree(tree int, at string) error {
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting %s: %w", at, err)
	}
	return nil
}

// views is where the views of members are, in the namespace.
const views = "/run/vm"

// view is all that a member's QEMU gets to see by name, in libvirtd's mount namespace: its paths are short, as Unix sockets need them, and can be
// searched by the cluster's user, whatever leads to the files on the host.
type view struct{ dir string }

func viewOf(id string) view { return view{filepath.Join(views, id)} }

func (v view) kernel() string             { return filepath.Join(v.dir, "kernel") }
func (v view) initrd() string             { return filepath.Join(v.dir, "initrd") }
func (v view) link(name string) string    { return filepath.Join(v.dir, "link", name) }
func (v view) control() string            { return filepath.Join(v.dir, "control") }
func (v view) run(name string) string     { return filepath.Join(v.dir, "run", name) }
func (v view) display(name string) string { return filepath.Join(v.dir, "display", name) }
func (v view) root(n int) string          { return filepath.Join(v.dir, fmt.Sprintf("root-%d", n)) }

// shown is a file or directory of the host in a view.
type shown struct {
	path, at string
	readOnly bool
}

// show makes a view anew. It is called on any thread.
func (d *daemon) show(v view, all []shown) error {
	if err := d.do(func() error { return errors.Join(hide(v), os.MkdirAll(v.dir, 0o711)) }); err != nil {
		return err
	}
	return d.add(all)
}

// add shows more in a view.
func (d *daemon) add(all []shown) error {
	trees, closeTrees, err := treesOf(all)
	if err != nil {
		return err
	}
	defer closeTrees()
	return d.do(func() error { return mountTrees(all, trees) })
}

// showTo adds something to the view of a process, which may be in another namespace than libvirtd is now.
func showTo(pid int, s shown) error {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return err
	}
	defer func() { _ = namespace.Close() }()
	trees, closeTrees, err := treesOf([]shown{s})
	if err != nil {
		return err
	}
	defer closeTrees()
	done := make(chan error, 1)
	go onOwnThread(func() {
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS)
		}
		if err == nil {
			err = mountTrees([]shown{s}, trees)
		}
		done <- err
	})
	return <-done
}

// treesOf opens what is shown, so that it can be mounted in any namespace.
func treesOf(all []shown) (trees []int, closeTrees func(), err error) {
	closeTrees = func() {
		for _, t := range trees {
			_ = unix.Close(t)
		}
	}
	for _, s := range all {
		tree, err := unix.OpenTree(unix.AT_FDCWD, s.path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			closeTrees()
			return nil, nil, fmt.Errorf("showing %s to the machine: %w", s.path, err)
		}
		trees = append(trees, tree)
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC}
		if s.readOnly {
			attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
		}
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
			closeTrees()
			return nil, nil, fmt.Errorf("showing %s to the machine: %w", s.path, err)
		}
	}
	return trees, closeTrees, nil
}

// mountTrees mounts what is shown, on a thread in the namespace.
func mountTrees(all []shown, trees []int) error {
	for i, s := range all {
		if err := mountPointLike(s.path, trees[i], s.at); err != nil {
			return err
		}
		if err := moveTree(trees[i], s.at); err != nil {
			return err
		}
	}
	return nil
}

// mountPointLike makes a directory or an empty file to mount a tree on.
func mountPointLike(path string, tree int, at string) error {
	var stat unix.Stat_t
	if err := unix.Fstatat(tree, "", &stat, unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("showing %s to the machine: %w", path, err)
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		return os.MkdirAll(at, 0o711)
	}
	return os.WriteFile(at, nil, 0o444)
}

// hide removes a view, on the thread in the namespace. What QEMU has open stays open.
func hide(v view) error {
	if err := os.RemoveAll(filepath.Dir(v.incoming())); err != nil { // nothing is mounted there
		return err
	}
	entries, err := os.ReadDir(v.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		at := filepath.Join(v.dir, e.Name())
		for unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
		}
		// Not what was below: Remove takes only what is empty.
		if err := os.Remove(at); err != nil {
			return err
		}
	}
	return os.Remove(v.dir)
}
