package apiserver

import (
	"context"
	"io"
	"net/netip"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/state"
)

// MachineWriter records what operators want of machines, builds and environments. *state.Repo is one.
type MachineWriter interface {
	CreateMachine(ctx context.Context, in api.MachineIntent) (int64, error)
	UpdateMachineIntent(ctx context.Context, name, uid string, change func(*api.MachineIntent) error) (api.MachineIntent, int64, error)
	RequestMachineRemoval(ctx context.Context, name string, force bool, at time.Time) (api.MachineIntent, int64, error)
	RequestPower(ctx context.Context, asks []state.PowerAsk) (int64, error)
	CreateEnrollToken(ctx context.Context, t api.EnrollmentToken) (int64, error)
	DeleteEnrollToken(ctx context.Context, id string) (int64, error)

	CreateBuild(ctx context.Context, build api.Build) (int64, error)
	UpdateBuild(ctx context.Context, id string, change func(*api.Build) error) (api.Build, int64, error)
	DeleteEnvironment(ctx context.Context, view *state.View, name string) (int64, error)
}

// Provisioning is the configuration of the network that machines boot from.
type Provisioning interface {
	// Capacity returns the number of machines for which its range has addresses. Range returns the first and the last address, for messages.
	Capacity() int
	Range() string
	// Address is that of the machine with this api.MachineRecord.Index; the zero Addr when the range has none.
	Address(index int) netip.Addr
	// TargetSeconds returns the longest time that a boot should take; 0: no target.
	TargetSeconds() float64
}

// Sealer encrypts secrets, which nobody may read in the store. *trust.Sealer implements it.
type Sealer interface {
	// Seal binds the secret to the ID of what it belongs to: a machine's UID, an enrolment token's ID.
	Seal(id string, secret []byte) []byte
}

// Consoles reaches machines' serial consoles.
type Consoles interface {
	// Dial opens the console of a machine. ctx bounds the opening only. The error is for people.
	Dial(ctx context.Context, node string) (io.ReadWriteCloser, error)
	// Password returns the console's login for the present boot; state.ErrNotFound if the site has not booted the machine.
	Password(ctx context.Context, node string) (user, password string, err error)
	// BMC returns the login at the machine's BMC; state.ErrNotFound if the site has no password for it.
	BMC(ctx context.Context, node string) (api.BMCLogin, error)
}

// Images holds what environments are made of, by digest. *imagestore.Store is one.
type Images interface {
	// Open returns content; the error is fs.ErrNotExist when there is none.
	Open(digest image.Digest) (netboot.Blob, error)
	// Touch reports whether content is there, and keeps it as long as content that is stored now: the caller is about to name it.
	Touch(digest image.Digest) bool
	// Put stores content and returns when it is durable; content of another digest is refused with image.ErrDigest.
	Put(ctx context.Context, digest image.Digest, r io.Reader) error
	// Receive stores what write writes, once write has returned nil; before, and after an error, nothing of it is there.
	Receive(ctx context.Context, write func(io.Writer) error) (image.Blob, error)
}

// MemberFiles is the site's store of the files of paused members.
type MemberFiles interface {
	// Receive is as of Images.
	Receive(ctx context.Context, write func(io.Writer) error) (image.Blob, error)
}

// Recipes reads recipes of environments. recipes.Catalog is one.
type Recipes interface {
	// Parse checks a recipe and returns the environment's name and the digest of the recipe's normal form. The error is a *manifest.Invalid.
	Parse(text []byte) (name, digest string, err error)
	// Shipped is a recipe that comes with the product.
	Shipped(name string) ([]byte, bool)
	ShippedNames() []string
}

// Compatible returns the problems for which a machine can't run an image, for people; nil: it can run the image. compatibility.Check is one.
type Compatible func(hw *api.Hardware, img api.Image) []string
