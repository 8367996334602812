package agent

import (
	"context"
	"errors"
	"log/slog"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	fabricnode "github.com/nearmetal/nearmetal/internal/fabric/node"
)

// openNetworks returns the node's networks, and its public key for an encrypted underlay.
func openNetworks(ctx context.Context, cfg fabricnode.Config, dir string) (*fabricnode.Fabric, string, error) {
	key, err := wireGuardKey(ctx, dir, cfg.Logger)
	if err != nil {
		return nil, "", err
	}
	cfg.PrivateKey = key
	networks, err := fabricnode.New(cfg)
	if err != nil || key == (wgtypes.Key{}) {
		return networks, "", err
	}
	return networks, key.PublicKey().String(), nil
}

// wireGuardKey returns the node's private key for an encrypted underlay, and the zero key on a node whose kernel has no WireGuard: the node then
// reports no key, and carries no network across nodes if the site's underlay is encrypted.
func wireGuardKey(ctx context.Context, dir string, log *slog.Logger) (wgtypes.Key, error) {
	err := fabricnode.CanEncrypt()
	if errors.Is(err, fabricnode.ErrNoWireGuard) {
		return wgtypes.Key{}, nil
	}
	if err != nil {
		log.WarnContext(ctx, "it is not known whether the kernel has WireGuard; the node reports no key for an encrypted underlay", "error", err)
		return wgtypes.Key{}, nil
	}
	return fabricnode.NodeKey(ctx, dir, log)
}
