package contextualization

import (
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
)

func gpuServer(of, node string) api.Assignment {
	return api.Assignment{
		ID: of + "-d0", Of: of, Node: node, Ports: []api.PortClaim{{Address: netip.MustParseAddr("10.64.16.40")}}, Devices: []api.DeviceClaim{{Class: "gpu", Way: "remote"}},
	}
}

func contentOf(files []driver.File, path string) string {
	if i := slices.IndexFunc(files, func(f driver.File) bool { return f.Path == path }); i >= 0 {
		return string(files[i].Content)
	}
	return ""
}

func TestAMemberIsToldOfTheServerOfItsGPUAndNoOther(t *testing.T) {
	const at, loader = "/etc/nearmetal/gpu-server", "/etc/OpenCL/vendors/nearmetal.icd"
	cluster := testCluster(t, func(c *Cluster) {
		for i := range c.Members {
			c.Members[i].Node = "n1"
		}
		c.GPUServers = []api.Assignment{gpuServer("u1.c1-0.1", "n1"), gpuServer("u1.c1-1.1", "n2")}
	})
	for id, want := range map[string]string{
		"u1.c1-0.1": "unix:/run/nearmetal-gpu/socket/server\n", "u1.c1-1.1": "tcp:10.64.16.40:7070\n", "u1.gpu-0.1": "",
	} {
		files := render(t, cluster, id)
		if got, driver := contentOf(files, at), contentOf(files, loader); got != want || (driver != "") != (want != "") {
			t.Errorf("%s has the server %q and the OpenCL driver %q, want server %q", id, got, driver, want)
		}
	}
}

// A member has the directory of the socket that was there when it started. It calls a server that it got later by TCP, on its own node, too.
func TestAMemberCallsALaterServerByTCP(t *testing.T) {
	for generation, want := range map[int64]string{0: "unix:/run/nearmetal-gpu/socket/server\n", 1: "tcp:10.64.16.40:7070\n"} {
		cluster := testCluster(t, func(c *Cluster) {
			for i := range c.Members {
				c.Members[i].Node = "n1"
			}
			s := gpuServer("u1.c1-0.1", "n1")
			s.Generation = c.Members[0].Generation + generation
			c.GPUServers = []api.Assignment{s}
		})
		if got := contentOf(render(t, cluster, "u1.c1-0.1"), "/etc/nearmetal/gpu-server"); got != want {
			t.Errorf("a server of %d generations later is at %q, want %q", generation, got, want)
		}
	}
}

// A virtual machine shares no memory with its node: it calls a server there as it calls one of another node.
func TestAVirtualMachineCallsTheServerOfItsOwnNodeByTCP(t *testing.T) {
	cluster := testCluster(t, func(c *Cluster) {
		for i := range c.Members {
			c.Members[i].Node, c.Members[i].Stack = "n1", api.StackVM
		}
		s := gpuServer("u1.c1-0.1", "n1")
		s.Generation = c.Members[0].Generation
		c.GPUServers = []api.Assignment{s}
	})
	files := render(t, cluster, "u1.c1-0.1")
	if got := contentOf(files, "/etc/nearmetal/gpu-server"); got != "tcp:10.64.16.40:7070\n" {
		t.Errorf("it has the server %q, want the one on its node by TCP", got)
	}
	if got := contentOf(files, "/etc/OpenCL/vendors/nearmetal.icd"); got != "/run/nearmetal-gpu/lib/libnearmetal_opencl.so\n" {
		t.Errorf("it has the OpenCL driver %q", got)
	}
}

func TestAnotherServerIsAReasonToRenderMembersAgain(t *testing.T) {
	basis := func(address string) string {
		r, err := New(testCluster(t, func(c *Cluster) {
			s := gpuServer("u1.c1-0.1", "n2")
			s.Ports[0].Address = netip.MustParseAddr(address)
			c.GPUServers = []api.Assignment{s}
		}))
		if err != nil {
			t.Fatal(err)
		}
		return r.OwnBasis()
	}
	if basis("10.64.16.40") == basis("10.64.16.41") {
		t.Error("a member's files follow from the address of its server, and what they follow from does not")
	}
}

func TestAServersCertificateIsForItsAddressAndForNoMember(t *testing.T) {
	r, err := New(testCluster(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	files, err := r.Own(gpuServer("u1.c1-0.1", "n2"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode([]byte(contentOf(files, "/etc/nearmetal/tls/workload.crt")))
	if block == nil {
		t.Fatalf("the server has no certificate: %+v", files)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if len(cert.IPAddresses) != 1 || cert.IPAddresses[0].String() != "10.64.16.40" || len(cert.DNSNames) > 0 || cert.Subject.CommonName != "u1.c1-0.1-d0" {
		t.Errorf("it is for %v, %v and %q, want the server's address and ID alone", cert.IPAddresses, cert.DNSNames, cert.Subject.CommonName)
	}
	for _, f := range files {
		if f.Path == "/etc/nearmetal/tls/workload.key" && (f.Mode != 0o600 || f.OwnedByUser) {
			t.Errorf("its key has mode %o, and is its user's: %t", f.Mode, f.OwnedByUser)
		}
	}
	if len(files) != 3 {
		t.Errorf("a server has %d files, want its certificate, its key and its authority's certificate", len(files))
	}
}
