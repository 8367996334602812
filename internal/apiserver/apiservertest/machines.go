package apiservertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
)

// Provisioning is a range of so many addresses from 10.9.0.10 on.
type Provisioning int

// Capacity is the number of addresses.
func (p Provisioning) Capacity() int { return int(p) }

// Range is the first and last address.
func (p Provisioning) Range() string { return fmt.Sprintf("%s-%s", p.Address(0), p.Address(int(p)-1)) }

// Address is the address with that index.
func (p Provisioning) Address(index int) netip.Addr {
	if index < 0 || index >= int(p) {
		return netip.Addr{}
	}
	return netip.AddrFrom4([4]byte{10, 9, 0, byte(10 + index)})
}

// TargetSeconds is a minute.
func (p Provisioning) TargetSeconds() float64 { return 60 }

// Sealer seals so that a test sees what was sealed for whom.
type Sealer struct{}

// Seal returns ID and secret.
func (Sealer) Seal(id string, secret []byte) []byte { return append([]byte(id+":"), secret...) }

// Consoles answer "login: " to who connects, and then what is written, until Broken.
type Consoles struct {
	mu     sync.Mutex
	broken error
}

// SetBroken makes consoles unreachable.
func (c *Consoles) SetBroken(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = err
}

// Dial opens a console.
func (c *Consoles) Dial(context.Context, string) (io.ReadWriteCloser, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return nil, c.broken
	}
	here, there := net.Pipe()
	go func() {
		_, _ = io.WriteString(there, "login: ")
		_, _ = io.Copy(there, there)
		_ = there.Close()
	}()
	return here, nil
}

// Password tells the one of a machine named n1.
func (c *Consoles) Password(_ context.Context, node string) (user, password string, err error) {
	if node != "n1" {
		return "", "", state.ErrNotFound
	}
	return "root", "correct horse", nil
}

// BMC tells the one of a machine named n1.
func (c *Consoles) BMC(_ context.Context, node string) (api.BMCLogin, error) {
	if node != "n1" {
		return api.BMCLogin{}, state.ErrNotFound
	}
	return api.BMCLogin{User: "operator", Password: "battery staple"}, nil
}

// Images is an image store in memory.
type Images struct {
	mu    sync.Mutex
	blobs map[image.Digest][]byte
	full  error
	kept  []image.Digest
}

// SetFull makes it refuse to store.
func (i *Images) SetFull(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.full = err
}

type blob struct{ *bytes.Reader }

func (blob) Close() error  { return nil }
func (b blob) Size() int64 { return b.Reader.Size() }

// Open returns what was stored.
func (i *Images) Open(digest image.Digest) (netboot.Blob, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	data, ok := i.blobs[digest]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return blob{bytes.NewReader(data)}, nil
}

// Touch notes what is to be kept.
func (i *Images) Touch(digest image.Digest) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	_, ok := i.blobs[digest]
	if ok {
		i.kept = append(i.kept, digest)
	}
	return ok
}

// Kept is what is to be kept, once for each time that was said.
func (i *Images) Kept() []image.Digest {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.kept)
}

// Put stores content.
func (i *Images) Put(_ context.Context, digest image.Digest, r io.Reader) error {
	data, err := io.ReadAll(r)
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case err != nil:
		return err
	case i.full != nil:
		return i.full
	case image.DigestOf(data) != digest:
		return fmt.Errorf("%w: it is %s", image.ErrDigest, image.DigestOf(data))
	}
	if i.blobs == nil {
		i.blobs = map[image.Digest][]byte{}
	}
	i.blobs[digest] = data
	return nil
}

// Receive stores content, unless write fails.
func (i *Images) Receive(ctx context.Context, write func(io.Writer) error) (image.Blob, error) {
	var data bytes.Buffer
	if err := write(&data); err != nil {
		return image.Blob{}, err
	}
	blob := image.Blob{Digest: image.DigestOf(data.Bytes()), SizeBytes: int64(data.Len())}
	return blob, i.Put(ctx, blob.Digest, &data)
}

// Build lets a build run on a node.
func (s *Site) Build(id, node string) {
	s.t.Helper()
	revision, err := s.Repo.CreateBuild(s.t.Context(), api.Build{ID: id, Environment: "e", Phase: api.BuildRunning, Node: node, Attempt: 1})
	if err == nil {
		_, err = s.Cache.WaitRevision(s.t.Context(), revision)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// Recipes knows recipes of one line, "name: NAME", and ships debian-mpi.
type Recipes struct{}

// Parse reads the name.
func (Recipes) Parse(text []byte) (name, digest string, err error) {
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		value, ok := strings.CutPrefix(line, "name: ")
		if !ok {
			key, _, _ := strings.Cut(line, ":")
			return "", "", &manifest.Invalid{Problems: []api.FieldProblem{{Location: key, Line: i + 1, Message: "is not a field"}}}
		}
		name = value
	}
	return name, string(image.DigestOf(text)), nil
}

// Shipped is debian-mpi.
func (Recipes) Shipped(name string) ([]byte, bool) {
	return []byte("name: debian-mpi\n"), name == "debian-mpi"
}

// ShippedNames are all there are.
func (Recipes) ShippedNames() []string { return []string{"debian-mpi"} }

// compatible finds memory short.
func compatible(hw *api.Hardware, img api.Image) []string {
	if need := int64(img.Requirements.MemoryBytes); hw.MemoryBytes < need {
		return []string{fmt.Sprintf("needs %d bytes of memory, the machine has %d", need, hw.MemoryBytes)}
	}
	return nil
}

// Enroll makes a machine with the MAC 52:54:00:00:00:N and a console, and commits that it is off, with 4 GiB of memory.
func (s *Site) Enroll(name string, n int) {
	s.t.Helper()
	rev, err := s.Repo.CreateMachine(context.Background(), api.MachineIntent{
		Name: name, UID: "uid-" + name, CreatedAt: s.now().UTC(), By: "admin", Spec: api.MachineSpec{
			MACs: []string{fmt.Sprintf("52:54:00:00:00:%02x", n)}, Console: "tcp://127.0.0.1:7001", Labels: map[string]string{"rack": "r1"},
			Power: api.PowerControl{Kind: api.PowerRedfish, Address: "https://bmc-" + name, User: "operator"},
		},
	})
	must(s.t, err)
	s.reach(rev)
	now := s.now().UTC()
	s.SetMachine(name, func(rec *api.MachineRecord) {
		rec.Phase, rec.Index, rec.Power, rec.InspectedAt = api.MachineOff, n, api.PowerOff, &now
	})
}

// SetMachine commits a change of a machine's record; the first one stores its hardware, too.
func (s *Site) SetMachine(name string, change func(*api.MachineRecord)) {
	s.t.Helper()
	m := s.Cache.View().Machine(name)
	w := state.MachineWrite{Record: api.MachineRecord{Name: name, UID: m.UID(), Power: api.PowerUnknown}}
	if m.Record != nil {
		w.Record = *m.Record
	} else {
		w.Hardware = &api.Hardware{
			Vendor: "Example", Product: "Board 1", Architecture: "x86_64", MemoryBytes: 4 << 30, EnrollmentToken: "nm1.secret",
			CPU: api.CPU{Model: "Processor", Sockets: 1, Cores: 4, Threads: 8},
		}
	}
	change(&w.Record)
	w.Record.ChangedAt = s.now().UTC()
	rev, err := s.Leader.CommitMachine(context.Background(), m, w)
	must(s.t, err)
	s.reach(rev)
}

// AddDisk stores an image of the disk of another system and makes an environment's name stand for it.
func (s *Site) AddDisk(environment string) {
	s.t.Helper()
	digest := string(image.DigestOf([]byte(environment)))
	_, err := s.Repo.PutImage(context.Background(), api.Image{
		Digest: digest, Environment: environment, Stacks: []api.Stack{api.StackVM}, BuiltAt: s.now().UTC(), RootBytes: 100 << 20, Architecture: "x86_64",
		Disk: &api.ForeignDisk{OS: api.SystemLinux, Firmware: api.FirmwareUEFI, Size: 1 << 30, Probe: api.Probe{SSH: true}},
	})
	must(s.t, err)
	rev, err := s.Repo.SetEnvironment(context.Background(), api.EnvironmentRecord{Name: environment, Digest: digest, UpdatedAt: s.now().UTC()})
	must(s.t, err)
	s.reach(rev)
}

// AddImage stores an image of so much memory needed and makes an environment's name stand for it.
func (s *Site) AddImage(environment string, memory api.Bytes, stacks ...api.Stack) string {
	s.t.Helper()
	digest := string(image.DigestOf([]byte(environment)))
	_, err := s.Repo.PutImage(context.Background(), api.Image{
		Digest: digest, Environment: environment, Description: "Built " + environment + ".", Stacks: stacks, BuiltAt: s.now().UTC(),
		Requirements: api.Requirements{MemoryBytes: memory}, RootBytes: 100 << 20, KernelVersion: "6.1.0", Architecture: "x86_64",
		BuiltBy: []api.BuiltBy{{Node: "builder1", Trusted: true, Digest: digest, At: s.now().UTC()}},
	})
	must(s.t, err)
	rev, err := s.Repo.SetEnvironment(context.Background(), api.EnvironmentRecord{
		Name: environment, Digest: digest, Recipe: "name: " + environment + "\n", UpdatedAt: s.now().UTC(),
	})
	must(s.t, err)
	s.reach(rev)
	return digest
}

// ChangeBuild stores a change of a build.
func (s *Site) ChangeBuild(id string, change func(*api.Build)) {
	s.t.Helper()
	_, rev, err := s.Repo.UpdateBuild(context.Background(), id, func(b *api.Build) error { change(b); return nil })
	must(s.t, err)
	s.reach(rev)
}
