package config

import (
	"fmt"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// RemoteGPUs is what servers of a node hand out to members of any node.
type RemoteGPUs struct {
	// All: the GPUs that the node gives to members, where nobody has them whole.
	All bool
	// OpenCL is how much memory of the host's own OpenCL device; 0: none.
	OpenCL api.Bytes
}

// Set reads none, all, or opencl:SIZE.
func (r *RemoteGPUs) Set(text string) error {
	*r = RemoteGPUs{}
	size, openCL := strings.CutPrefix(text, "opencl:")
	switch {
	case text == "none":
	case text == "all":
		r.All = true
	case openCL:
		bytes, err := api.ParseBytes(size)
		if err != nil || bytes < 1<<20 {
			return fmt.Errorf("%q is no size of memory; write opencl:SIZE, such as opencl:4GiB", size)
		}
		r.OpenCL = bytes
	default:
		return fmt.Errorf("%q is none of: none, all, opencl:SIZE (such as opencl:4GiB)", text)
	}
	return nil
}

// String returns the text that Set reads.
func (r *RemoteGPUs) String() string {
	switch {
	case r.All:
		return "all"
	case r.OpenCL > 0:
		return "opencl:" + r.OpenCL.String()
	default:
		return "none"
	}
}

// Type is what the flag takes.
func (*RemoteGPUs) Type() string { return "what" }
