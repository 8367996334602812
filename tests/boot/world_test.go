package boot

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/internal/hostsnapshot"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// prefix begins the names of the data centres of these tests.
const prefix = "bt"

// networks are a name for a data centre, and addresses for it that no other test uses at the same time.
type networks struct {
	name string
	// address is the server's on the provisioning network.
	address, bmc netip.Prefix
}

// claimNetworks finds what is free. Several runs may go on at once: whoever listens at the abstract socket of a
// number has that number's networks, in the network namespace that this runs in, for as long as it lives.
func claimNetworks(t *testing.T) networks {
	t.Helper()
	for i := 100; i < 250; i++ {
		l, err := net.Listen("unix", fmt.Sprintf("@nearmetal-tests-boot-%d", i))
		if err != nil {
			continue
		}
		t.Cleanup(func() { _ = l.Close() })
		return networks{
			prefix + strings.ToLower(rand.Text()[:6]), netip.MustParsePrefix(fmt.Sprintf("10.99.%d.1/24", i)), netip.MustParsePrefix(fmt.Sprintf("10.98.%d.0/24", i)),
		}
	}
	t.Fatal("no networks are left: do 150 tests of network boot run at once?")
	return networks{}
}

// connect gives the server its address on the provisioning network.
func (s *site) connect() {
	s.t.Helper()
	link, err := netlink.LinkByName(s.link)
	must(s.t, err)
	address, err := netlink.ParseAddr(s.address.String())
	must(s.t, err)
	must(s.t, netlink.AddrAdd(link, address))
	must(s.t, netlink.LinkSetUp(link))
}

// template is the state directory of a site that has built what machines boot, made once for all tests.
var template struct {
	once sync.Once
	dir  string
	err  error
	// remove: nobody wants to keep it.
	remove bool
}

// copyTemplate begins with the images of the template, as a site does whose state was restored.
func (s *site) copyTemplate() {
	s.t.Helper()
	template.once.Do(func() { template.dir, template.err = makeTemplate(s.t) })
	if template.dir == "" || template.err != nil {
		s.t.Fatalf("no images to boot were built: %v", template.err)
	}
	if out, err := exec.Command("cp", "-a", template.dir+"/.", s.dir).CombinedOutput(); err != nil {
		s.t.Fatalf("cp: %v: %s", err, out)
	}
}

// makeTemplate builds the images, unless NEARMETAL_BOOT_TEMPLATE names a folder where an earlier run of the same program has put them.
func makeTemplate(t *testing.T) (string, error) {
	dir, err := os.Getenv("NEARMETAL_BOOT_TEMPLATE"), error(nil)
	if dir == "" {
		dir, err = os.MkdirTemp("", "boot-images")
		template.remove = true
	}
	if err := errors.Join(err, os.MkdirAll(dir, 0o711), os.Chmod(dir, 0o711)); err != nil {
		return dir, err
	}
	content, err := os.ReadFile(program(t))
	if err != nil {
		return dir, err
	}
	made, digest := filepath.Join(dir, "made-by"), fmt.Sprintf("%x", sha256.Sum256(content))
	if by, _ := os.ReadFile(made); string(by) == digest {
		return dir, nil
	}
	b := &site{t: t, program: program(t), dir: dir, listen: freeAddress(t)}
	b.start()
	defer b.stop()
	b.build("inspect", "--force")
	b.build("debian-mpi", "--force")
	return dir, os.WriteFile(made, []byte(digest), 0o600)
}

func TestMain(m *testing.M) {
	code := m.Run()
	if template.remove {
		_ = os.RemoveAll(template.dir)
	}
	os.Exit(code)
}

// enginesFiles are the files of Podman and Docker, in which no part of Nearmetal writes.
var enginesFiles = regexp.MustCompile(`^/(run|var/lib)/(libpod|containers|containerd|docker|cni)(/|$)`)

// nothingLeft looks at the whole host now and again when the test is over; whatever was left behind fails the test. Other data centres,
// and what other programs do meanwhile, are none of its business. While others run sites of their own, whose networks and namespaces nothing
// tells from this test's, those are counted only. The cache of the virtual data centre lasts, and its first use makes it.
func nothingLeft(t *testing.T) {
	t.Helper()
	must(t, hostsnapshot.AdoptOrphans())
	roots := []string{vdc.BaseDir}
	for _, root := range hostsnapshot.DefaultFileRoots {
		if root != "/tmp" && root != "/var/tmp" {
			roots = append(roots, root)
		}
	}
	opts := hostsnapshot.Options{FileRoots: roots, Ignore: func(kind hostsnapshot.Kind, key string) bool {
		if kind == hostsnapshot.File && strings.HasPrefix(key, filepath.Dir(vdc.CacheDir)+"/") { // those of other tests are beside it
			return true
		}
		below, ok := strings.CutPrefix(key, vdc.BaseDir)
		return kind == hostsnapshot.File && ok && !strings.HasPrefix(strings.TrimPrefix(below, "/"), prefix)
	}}
	others := sites(t)
	before, err := hostsnapshot.Take(t.Context(), opts)
	must(t, err)
	t.Cleanup(func() {
		collectOrphans()
		others = append(others, sites(t)...)
		_, differences, err := before.Settle(context.Background(), opts, 15*time.Second)
		if err != nil {
			t.Error(err)
		}
		excused := 0
		for _, d := range hostsnapshot.Counting(differences) {
			if d.Kind == hostsnapshot.File && enginesFiles.MatchString(d.Key) {
				t.Log("not counted, a container engine beside the test writes there:", d)
				continue
			}
			if len(others) > 0 && d.Kind != hostsnapshot.File && d.Kind != hostsnapshot.Process && d.Kind != hostsnapshot.Cgroup {
				excused++
				continue
			}
			t.Error("left on the host:", d)
		}
		if excused > 0 {
			t.Logf("%d things in networks and namespaces differ from before; other sites run here: %v", excused, others)
		}
	})
}

// sites are the folders with the namespaces of all sites on this machine.
func sites(t *testing.T) (all []string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); f[0] == "nearmetal" && f[2] == "tmpfs" {
			all = append(all, f[1])
		}
	}
	return all
}

// collectOrphans takes note of ended processes that fell to this one, such as the agent of a server that was killed.
func collectOrphans() {
	for pid, err := 1, error(nil); pid > 0 && err == nil; {
		pid, err = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
	}
}

// wantNoPassword checks that the BMCs' password is neither in what the server said nor in anything it keeps: whatever a BMC did, it is sealed
// at rest and never logged. Mounts of members and images are not looked into.
func (s *site) wantNoPassword(password string) {
	s.t.Helper()
	if strings.Contains(s.said(), password) {
		s.t.Error("the server's log tells a BMC's password")
	}
	var top syscall.Stat_t
	must(s.t, syscall.Stat(s.dir, &top))
	must(s.t, filepath.WalkDir(s.dir, func(path string, entry fs.DirEntry, err error) error {
		var status syscall.Stat_t
		if err == nil {
			err = syscall.Lstat(path, &status)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // it was in use a moment ago
		case err != nil:
			return err
		case entry.IsDir() && status.Dev != top.Dev:
			return fs.SkipDir
		case !entry.Type().IsRegular() || path == s.password:
			return nil
		}
		content, err := os.ReadFile(path)
		if bytes.Contains(content, []byte(password)) {
			s.t.Errorf("%s holds a BMC's password", path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}))
}

// wantUntouched checks that nothing of what ran on the machines is left at them: their BMCs have no session open, and nothing was written to
// their disks, which were empty.
func (s *site) wantUntouched() {
	s.t.Helper()
	for _, m := range s.dc.Machines() {
		s.until(time.Minute, "the sessions of the BMC of "+m.Name+" to be closed", func() bool {
			redfish, ipmi, err := s.dc.BMCSessions(m.Name)
			return err == nil && redfish == 0 && ipmi == 0
		})
		disks, err := filepath.Glob(filepath.Join(s.dc.Folder(), "disks", m.Name+"-*"))
		must(s.t, err)
		for _, disk := range disks {
			var status syscall.Stat_t
			must(s.t, syscall.Stat(disk, &status))
			if status.Blocks != 0 {
				s.t.Errorf("%d blocks were written to the disk %s", status.Blocks, filepath.Base(disk))
			}
		}
	}
}
