package container

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/needs"
)

func TestAStateFollowsFromWhatIsOnTheHost(t *testing.T) {
	cases := []struct {
		have evidence
		want driver.State
	}{
		{evidence{}, driver.StateAbsent},
		{evidence{dir: true}, driver.StatePrepared},
		{evidence{group: true}, driver.StatePrepared},
		{evidence{dir: true, group: true}, driver.StatePrepared},
		{evidence{dir: true, group: true, started: true, initAlive: true}, driver.StateRunning},
		{evidence{dir: true, group: true, started: true, initAlive: true, frozen: true}, driver.StatePaused},
		{evidence{dir: true, group: true, started: true}, driver.StateExited},
		{evidence{dir: true, group: true, started: true, frozen: true}, driver.StateExited},
		{evidence{dir: true, group: true, frozen: true}, driver.StatePrepared},
		{evidence{dir: true, started: true}, driver.StateExited},
	}
	for _, c := range cases {
		if got := stateOf(c.have); got != c.want {
			t.Errorf("%+v is %s, want %s", c.have, got, c.want)
		}
	}
}

func TestGeneratedFilesWinOverTheHostsInEtc(t *testing.T) {
	bind := func(path string) environment.Bind { return environment.Bind{Source: path, Target: path} }
	root := environment.Root{
		Binds: []environment.Bind{
			bind("/etc/alternatives"), bind("/etc/hosts"), bind("/etc/ld.so.cache"), bind("/etc/openmpi"), bind("/etc/services"), bind("/usr"),
		},
		Links: []environment.Link{{Path: "/etc/localtime", Target: "/usr/x"}, {Path: "/etc/motd", Target: "/usr/y"}, {Path: "/bin", Target: "usr/bin"}},
	}
	files := []driver.File{{Path: "/etc/hosts"}, {Path: "/etc/openmpi/openmpi-default-hostfile"}, {Path: "/etc/motd"}}
	got, err := planEtc(files, root, func(path string) bool { return path == "/etc/services" })
	if err != nil {
		t.Fatal(err)
	}
	want := etcPlan{
		files: files, binds: []environment.Bind{bind("/etc/alternatives"), bind("/etc/ld.so.cache")},
		copies: []environment.Bind{bind("/etc/openmpi"), bind("/etc/services")},
		links:  []environment.Link{{Path: "/etc/localtime", Target: "/usr/x"}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(etcPlan{})); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

func TestFilesOutsideEtcAreRefused(t *testing.T) {
	for _, path := range []string{"", "/etc", "/etc/", "/root/x", "etc/x", "/etc/../root/x", "/etc//x", "/etcetera"} {
		if _, err := planEtc([]driver.File{{Path: path}}, environment.Root{}, isSmallFile); err == nil {
			t.Errorf("%q was accepted", path)
		}
	}
}

func TestMembersThatCantBeCarriedSafelyAreRefusedWithTheReason(t *testing.T) {
	good := driver.Member{
		Assignment: api.Assignment{ID: "u.c1-0.1", CPUs: []int{0}, NUMANodes: []int{0}, Memory: []api.MemoryClaim{{Bytes: 1 << 30}}, UserIDs: api.IDRange{First: 1_065_536, Count: 65536}},
		HomeDir:    "/srv/home", ControlDir: "/srv/control", User: driver.User{Name: "hpc", UID: 1000, GID: 1000},
	}
	if err := checkMember(good); err != nil {
		t.Fatalf("a good member is refused: %v", err)
	}
	cases := []struct {
		spoil func(m *driver.Member)
		want  string
	}{
		{func(m *driver.Member) { m.Assignment.ID = "../../etc" }, `"../../etc" is not a valid member ID; use letters, digits, '.', '_' and '-'`},
		{func(m *driver.Member) { m.Assignment.CPUs = nil }, "the assignment has no CPUs or no memory nodes"},
		{func(m *driver.Member) { m.Assignment.Memory = []api.MemoryClaim{{Bytes: 1 << 20}} }, "a memory limit of 1048576 bytes is too small for a container; the minimum is 16MiB"},
		{func(m *driver.Member) { m.Assignment.UserIDs.First = 0 }, "the cluster's range of user IDs 0+65536 must have 65536 IDs and not start at the host's"},
		{func(m *driver.Member) { m.HomeDir = "home" }, `the home ("home") and control ("/srv/control") directories must be absolute paths`},
		{func(m *driver.Member) { m.User.Name = "../root" }, `"../root" is not a valid user name`},
		{func(m *driver.Member) { m.User.Name = ".." }, `".." is not a valid user name`},
	}
	for _, c := range cases {
		m := good
		c.spoil(&m)
		if err := checkMember(m); err == nil || err.Error() != c.want {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
}

func TestAMembersOutputIsKeptShortAndItsDescriptorGood(t *testing.T) {
	path := filepath.Join(t.TempDir(), "output.log")
	writer, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if _, err := writer.WriteString(strings.Repeat("x", 2*outputMost) + "the end\n"); err != nil {
		t.Fatal(err)
	}
	if err := boundOutput(path); err != nil {
		t.Fatal(err)
	}
	if _, err := writer.WriteString("after\n"); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > outputMost || !strings.HasSuffix(string(data), "xthe end\nafter\n") {
		t.Errorf("%d bytes are kept that end in %q", len(data), data[max(0, len(data)-20):])
	}
}

func TestAProgramsWordsAreMadeSafeForATerminal(t *testing.T) {
	for said, want := range map[string]string{
		"":                               "without any output",
		"a\nb\tc\n":                      "a b c",
		"\x1b[31mred\x07":                "[31mred",
		strings.Repeat("y", 10) + "\xff": "yyyyyyyyyy",
	} {
		if got := readable([]byte(said)); strings.TrimSuffix(got, "\ufffd") != want {
			t.Errorf("%q became %q, want %q", said, got, want)
		}
	}
}

func TestTheConfigurationGivesAwayNothingOfTheHost(t *testing.T) {
	spec, err := renderSpec(specInput{
		member: driver.Member{
			Assignment: api.Assignment{ID: "u.c1-0.1", Member: "c1-0", CPUs: []int{2, 3}, NUMANodes: []int{1}, Memory: []api.MemoryClaim{{NUMANode: 1, Bytes: 1 << 30}}, UserIDs: api.IDRange{First: 1_065_536, Count: 65536}},
			HomeDir:    "/state/home/u", ControlDir: "/state/control/m",
		},
		root:    environment.Root{Binds: []environment.Bind{{Source: "/usr", Target: "/usr"}, {Source: "/etc/alternatives", Target: "/etc/alternatives"}}},
		rootDir: "/media/members/m/root", etcBinds: []environment.Bind{{Source: "/etc/alternatives", Target: "/etc/alternatives"}},
		memberBinary: "/state/member", args: []string{MemberPath}, cgroupPath: "/nearmetal/n1/m", limits: limits{swap: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	var binds []string
	for _, m := range spec.Mounts {
		if m.Type != "bind" {
			continue
		}
		mode := "rw"
		if slices.Contains(m.Options, "ro") {
			mode = "ro"
		}
		binds = append(binds, m.Source+" "+m.Destination+" "+mode)
		for _, option := range []string{"nosuid", "nodev"} {
			if !slices.Contains(m.Options, option) {
				t.Errorf("%s is mounted without %s", m.Destination, option)
			}
		}
	}
	want := []string{
		"/state/home/u /home rw", "/state/control/m /run/nearmetal ro", "/state/member /run/nearmetal-member ro", "/usr /usr ro",
		"/etc/alternatives /etc/alternatives ro",
	}
	if diff := cmp.Diff(want, binds); diff != "" {
		t.Errorf("bind mounts: want (-), got (+):\n%s", diff)
	}
	if !spec.Root.Readonly || !spec.Process.NoNewPrivileges || spec.Linux.Seccomp == nil || len(spec.Linux.Namespaces) != 7 {
		t.Error("the root is writable, privileges can be gained, or there is no seccomp profile or a namespace too few")
	}
	if r := spec.Linux.Resources; r.CPU.Cpus != "2,3" || r.CPU.Mems != "1" || *r.Memory.Limit != 1<<30 || *r.Memory.Swap != 1<<30 {
		t.Errorf("resources %+v %+v", r.CPU, r.Memory)
	}
	for _, forbidden := range []string{"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_MKNOD", "CAP_SYS_PTRACE", "CAP_SYS_RESOURCE", "CAP_SYS_MODULE"} {
		if slices.Contains(spec.Process.Capabilities.Bounding, forbidden) {
			t.Errorf("the member's root keeps %s", forbidden)
		}
	}
	allowed := map[string]bool{}
	for _, call := range spec.Linux.Seccomp.Syscalls {
		for _, name := range call.Names {
			allowed[name] = allowed[name] || call.Action == "SCMP_ACT_ALLOW" && len(call.Args) == 0
		}
	}
	for name, want := range map[string]bool{
		"process_vm_readv": true, "process_vm_writev": true, "mount": false, "unshare": false, "bpf": false, "init_module": false, "kexec_load": false,
	} {
		if allowed[name] != want {
			t.Errorf("system call %s allowed: %t, want %t", name, allowed[name], want)
		}
	}
}

func TestServicesOfAnImageKeepTheirNumbers(t *testing.T) {
	generated := []driver.File{
		{Path: "/etc/passwd", Content: []byte("root:*:0:0::/root:/bin/bash\nsshd:*:101:65534::/run/sshd:/bin/false\nhpc:*:1000:1000::/home/hpc:/bin/bash\nnobody:*:65534:65534::/:/bin/false\n")},
		{Path: "/etc/hosts", Content: []byte("127.0.0.1\tlocalhost\n")},
	}
	for name, tc := range map[string]struct{ image, want string }{
		"another service has what is sshd's elsewhere": {
			"root:x:0:0::/:/bin/sh\nsshd:x:100:65534::/run/sshd:/sbin/nologin\nmunge:x:101:104::/nonexistent:/bin/false\nuser:x:1000:1000::/:/bin/sh\nnobody:x:99:99::/:/bin/sh\n",
			"root:*:0:0::/root:/bin/bash\nsshd:x:100:65534::/run/sshd:/sbin/nologin\nhpc:*:1000:1000::/home/hpc:/bin/bash\nnobody:*:65534:65534::/:/bin/false\n" +
				"munge:x:101:104::/nonexistent:/bin/false\n",
		},
		"nobody becomes root or a person": {
			"sshd:x:0:0::/:/bin/sh\nhpc:x:7:7::/:/bin/sh\n",
			string(generated[0].Content),
		},
		"what is no account": {"# a comment\n:x:5:5::/:/bin/sh\nsshd\nlast:x:7:7::/:/bin/false", string(generated[0].Content) + "last:x:7:7::/:/bin/false\n"},
	} {
		got := addAccounts(generated, map[string]string{"/etc/passwd": tc.image, "/etc/group": "munge:x:104:\n"})
		if string(got[0].Content) != tc.want || string(got[1].Content) != string(generated[1].Content) {
			t.Errorf("%s: got\n%swant\n%s", name, got[0].Content, tc.want)
		}
	}
}

func TestVolumesAreMountedWhereAnEnvironmentHasRoomForThem(t *testing.T) {
	host := t.TempDir()
	for _, dir := range []string{"srv", "opt/tool", "mnt/data"} {
		if err := os.MkdirAll(filepath.Join(host, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var root environment.Root
	for _, target := range []string{"/srv", "/opt", "/mnt"} {
		root.Binds = append(root.Binds, environment.Bind{Source: "/image" + target, Target: target, View: host + target})
	}
	for path, want := range map[string]string{
		"/volumes/data": "/srv /opt /mnt", "/srv": "/srv /opt /mnt", "/srv/a/b": "/opt /mnt", "/mnt/data": "/srv /opt /mnt", "/opt/tool": "/srv /opt /mnt",
		"/opt/other": `it has no directory /opt/other, and none can be made in its /opt; attach the volume elsewhere, such as below /volumes`,
	} {
		got, err := withPlaces(root, []driver.Mount{{Path: path}})
		var targets []string
		for _, b := range got.Binds {
			targets = append(targets, b.Target)
		}
		text := strings.Join(targets, " ")
		if err != nil {
			text = err.Error()
		}
		if text != want {
			t.Errorf("a volume at %s: got %q, want %q", path, text, want)
		}
		if own := len(got.Dirs) == 1 && got.Dirs[0].Path == "/srv"; own != (path == "/srv/a/b") {
			t.Errorf("a volume at %s: the member's own directories are %+v", path, got.Dirs)
		}
	}
}

func TestVolumesAreBoundAsTheyAreAttached(t *testing.T) {
	m := driver.Member{
		Assignment: api.Assignment{CPUs: []int{0}, NUMANodes: []int{0}, Memory: []api.MemoryClaim{{Bytes: 1 << 30}}, UserIDs: api.IDRange{First: 1_065_536, Count: 65536}},
		ControlDir: "/state/control/m", Mounts: []driver.Mount{{Source: "/media/volumes/m/0", Path: "/volumes/a"}, {Source: "/media/volumes/m/1", Path: "/volumes/b", ReadOnly: true}},
	}
	var got []string
	for _, mount := range mounts(specInput{member: m}) {
		if strings.HasPrefix(mount.Destination, "/volumes/") || mount.Destination == "/home" {
			got = append(got, mount.Type+" "+mount.Source+" "+mount.Destination+" "+strings.Join(mount.Options, ","))
		}
	}
	want := []string{
		"tmpfs tmpfs /home nosuid,nodev,mode=755,size=536870912,tmpcopyup",
		"bind /media/volumes/m/0 /volumes/a bind,nosuid,nodev", "bind /media/volumes/m/1 /volumes/b bind,nosuid,nodev,ro",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mounts: want (-), got (+):\n%s", diff)
	}
}

func TestWhatTheRuntimeSeesOfAReadOnlyVolumeIsReadOnly(t *testing.T) {
	needs.Root(t, "clones mounts")
	for _, readOnly := range []bool{false, true} {
		tree, err := openVolume(t.TempDir(), readOnly)
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		var file unix.Statfs_t
		if err := unix.Fstatfs(int(tree.Fd()), &file); err != nil {
			t.Fatal(err)
		}
		if got := file.Flags&unix.ST_RDONLY != 0; got != readOnly || file.Flags&unix.ST_NOSUID == 0 || file.Flags&unix.ST_NODEV == 0 {
			t.Errorf("read-only %t: the mount has the flags %#x", readOnly, file.Flags)
		}
	}
}
