package state

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/store"
)

// Redemption is the exchange of a boot token: stored at redeemed/UID, the newest of each machine only.
type Redemption struct {
	// UID and Machine are the machine's, Generation of its boot.
	UID        string `json:"uid"`
	Machine    string `json:"machine"`
	Generation int64  `json:"generation"`
	// NonceSHA256 is the hash, in hexadecimal, of what the machine made once in this boot: whoever else has the token has not that.
	NonceSHA256 string    `json:"nonce_sha256"`
	At          time.Time `json:"at"`
	// IdentityID is of the identity its node agent was given; it ends with the boot.
	IdentityID string `json:"identity_id,omitempty"`
}

// ErrRedeemed reports that a boot token was exchanged before, by another machine or in another life of this one.
var ErrRedeemed = errors.New("the boot token was already exchanged")

// ErrBootOver reports that the boot of a token is over.
var ErrBootOver = errors.New("that boot has ended")

// RedeemBoot notes that a boot token was exchanged, and makes the node agent's identity, nil for none, true in the same commit; that of the
// boot before has ended then, and any other under the machine's name. The same nonce may come again, for an answer that was lost, and gets
// another identity. Another nonce, or a generation older than the newest exchanged, is ErrRedeemed; a boot that does not go on by then
// ErrBootOver.
func (r *Repo) RedeemBoot(ctx context.Context, redemption Redemption, identity *api.NodeIdentity) (int64, error) {
	key := prefixRedeemed + redemption.UID
	for {
		old, revision, err := get[Redemption](ctx, r, key, "boot of machine", redemption.UID)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return 0, err
		}
		if old.Generation > redemption.Generation || old.Generation == redemption.Generation && old.NonceSHA256 != redemption.NonceSHA256 && revision != 0 {
			return 0, fmt.Errorf("boot %d of the machine: %w", redemption.Generation, ErrRedeemed)
		}
		record, decided, err := get[api.MachineRecord](ctx, r, prefixMachineRecord+redemption.Machine, "machine", redemption.Machine)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return 0, err
		}
		if record.UID != redemption.UID || !lifecycle.MayBoot(&record) || record.Boot.Generation != redemption.Generation {
			return 0, fmt.Errorf("boot %d of the machine: %w", redemption.Generation, ErrBootOver)
		}
		ops := []store.Op{{Key: prefixIdentity + redemption.Machine, Delete: true}}
		if identity != nil {
			redemption.IdentityID = identity.ID
			ops = []store.Op{put(prefixIdentity+redemption.Machine, *identity)}
		}
		ops = append(ops, put(key, redemption))
		next, err := r.store.Commit(ctx, []store.Cond{
			{Key: key, Revision: revision}, {Key: prefixMachineRecord + redemption.Machine, Revision: decided},
		}, ops)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("store the exchange of a boot token: %w", err)
		}
		return next, nil
	}
}

// endBoot is what ends the identity of a machine's node agent: it has gone off, or is no machine of this site any more (forget).
func (r *Repo) endBoot(ctx context.Context, uid string, forget bool) ([]store.Cond, []store.Op, error) {
	key := prefixRedeemed + uid
	old, revision, err := get[Redemption](ctx, r, key, "boot of machine", uid)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, nil, err
	}
	conds, ops := []store.Cond{{Key: key, Revision: revision}}, []store.Op(nil)
	if old.IdentityID != "" {
		ops = append(ops, store.Op{Key: prefixIdentity + old.Machine, Delete: true})
	}
	switch {
	case revision == 0:
	case forget:
		ops = append(ops, store.Op{Key: key, Delete: true})
	case old.IdentityID != "":
		old.IdentityID = ""
		ops = append(ops, put(key, old))
	}
	return conds, ops, nil
}
