package agenttest

import (
	"context"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	"github.com/nearmetal/nearmetal/internal/fabric"
	fabricfake "github.com/nearmetal/nearmetal/internal/fabric/fake"
)

// PretendedMachine is Pretended for a machine that a member has whole.
func PretendedMachine(ctx context.Context) (driver.Driver, fabric.Fabric) {
	networks := &fabricfake.Fabric{}
	return Speaking(ctx, fake.NewMetal(fake.NewHost(), networks)), networks
}

// Pretended returns what an agent needs to pretend a node: a driver of container members, which speak until ctx ends, and its fabric.
func Pretended(ctx context.Context) (driver.Driver, fabric.Fabric) {
	networks := &fabricfake.Fabric{}
	return Speaking(ctx, fake.New(fake.NewHost(), networks)), networks
}
