package controller

import (
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// gpuServerOf is the server of a member's remote GPUs, nil for a member that has none.
func gpuServerOf(held []api.Assignment, member *api.Assignment) *driver.GPUServer {
	i := slices.IndexFunc(held, func(a api.Assignment) bool { return a.ServesGPU() && a.Of == member.ID })
	if i < 0 {
		return nil
	}
	return &driver.GPUServer{ID: held[i].ID, Node: held[i].Node}
}
