package contextualization

import (
	"fmt"
	"net/netip"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// Where programs of a member find remote GPUs. The front ends read gpuServerPath, and OpenCL's loader what is in /etc/OpenCL/vendors.
const (
	gpuServerPath = "/etc/nearmetal/gpu-server"
	openCLPath    = "/etc/OpenCL/vendors/nearmetal.icd"
	openCLDriver  = "/run/nearmetal-gpu/lib/libnearmetal_opencl.so"
	gpuSocket     = "/run/nearmetal-gpu/socket/server"
)

// gpuServers are the servers, and where members find them, for comparison.
func (r *Renderer) gpuServers() []string {
	var all []string
	for i := range r.cluster.GPUServers {
		s := &r.cluster.GPUServers[i]
		all = append(all, s.ID+" "+s.Node+" "+s.Address().String())
	}
	return all
}

// gpuFiles tell a member's programs of the server of its remote GPUs; nil for a member without one.
func (r *Renderer) gpuFiles(m *api.Assignment) []driver.File {
	for i := range r.cluster.GPUServers {
		s := &r.cluster.GPUServers[i]
		if s.Of != m.ID {
			continue
		}
		// The socket's directory was mounted when the member started. A server that the member got later has another one. A virtual machine shares no memory with
		// its node.
		at := "unix:" + gpuSocket
		if s.Node != m.Node || s.Generation != m.Generation || m.Stack == api.StackVM {
			at = fmt.Sprintf("tcp:%s:%d", s.Address(), api.PortGPUServer)
		}
		return []driver.File{public(gpuServerPath, at+"\n"), public(openCLPath, openCLDriver+"\n")}
	}
	return nil
}

// renderGPUServer renders the files of a server: its certificate, by its address, and the authority of its cluster.
func (r *Renderer) renderGPUServer(s api.Assignment) ([]driver.File, error) {
	identity, err := r.cluster.Certificates.Workload(s.ID, nil, []netip.Addr{s.Address()}, r.period)
	if err != nil {
		return nil, err
	}
	return []driver.File{
		public(tlsAuthorityPath, string(r.cluster.Certificates.Certificate())),
		public(workloadCertPath+".crt", string(identity.Certificate)),
		{Path: workloadCertPath + ".key", Content: identity.Key, Mode: 0o600},
	}, nil
}
