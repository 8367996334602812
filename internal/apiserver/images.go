package apiserver

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"slices"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/imagestore"
	"github.com/nearmetal/nearmetal/internal/state"
)

// blobStall is how long an upload may bring nothing before it is given up.
const blobStall = time.Minute

// uploadsPath is where files are uploaded, by the digits of their digest.
const uploadsPath = "/v1/uploads/"

// blobDigest is the digest that a request's path names.
func blobDigest(r *http.Request) (image.Digest, *failure) {
	digest := image.Digest("sha256:" + r.PathValue("hex"))
	if err := digest.Check(); err != nil {
		return "", fail(codeDigest, "%v", err)
	}
	return digest, nil
}

// getBlob sends content by its digest, or parts of it (RFC 9110, section 14), to node agents.
func (s *Server) getBlob(w http.ResponseWriter, r *http.Request) {
	digest, f := blobDigest(r)
	if f == nil && s.cfg.Images == nil {
		f = fail(codeUnavailable, "this server holds no images")
	}
	if f != nil {
		f.write(w)
		return
	}
	if r.Method == http.MethodHead {
		s.cfg.Images.Touch(digest) // who asks only whether it is there won't send it, and names it next: it must not be collected until then
	}
	blob, err := s.cfg.Images.Open(digest)
	if errors.Is(err, fs.ErrNotExist) {
		fail(codeNoImage, "there is no content %s", digest).write(w)
		return
	}
	if err != nil {
		s.asFailure(r.Context(), err).write(w)
		return
	}
	defer func() { _ = blob.Close() }()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("ETag", `"`+digest.Hex()+`"`)
	http.ServeContent(w, r, "", time.Time{}, io.NewSectionReader(blob, 0, blob.Size()))
}

// putBlob stores content that a node agent built, verified by its digest.
func (s *Server) putBlob(w http.ResponseWriter, r *http.Request) {
	digest, f := blobDigest(r)
	if f == nil && s.cfg.Images == nil {
		f = fail(codeUnavailable, "this server holds no images")
	}
	if f == nil && !building(s.cfg.Reader.View(), who(r.Context()).Node) {
		f = fail(codeForbidden, "no build runs on this node, so the node has nothing to store")
	}
	if f != nil {
		f.write(w)
		return
	}
	s.storeBlob(w, r, digest)
}

// putUpload stores the file of a disk image for a build that imports it. What no build takes is removed after a while.
func (s *Server) putUpload(w http.ResponseWriter, r *http.Request) {
	if err := s.hasRoom(); err != nil {
		s.asFailure(r.Context(), err).write(w)
		return
	}
	digest, f := blobDigest(r)
	if f == nil && s.cfg.Images == nil {
		f = fail(codeUnavailable, "this server holds no images")
	}
	if f != nil {
		f.write(w)
		return
	}
	s.storeBlob(w, r, digest)
}

// storeBlob stores a request's body, verified by its digest, unless it is there.
func (s *Server) storeBlob(w http.ResponseWriter, r *http.Request, digest image.Digest) {
	if s.cfg.Images.Touch(digest) {
		w.WriteHeader(http.StatusOK)
		return
	}
	ctx, cancel := s.untilStopped(r.Context())
	defer cancel()
	if err := s.cfg.Images.Put(ctx, digest, upload{r.Body, http.NewResponseController(w)}); err != nil {
		s.blobFailure(ctx, err).write(w)
		return
	}
	w.WriteHeader(http.StatusCreated)
}

// building tells whether a build runs on a node: nobody else has content to store, and the disk is the one that all that is decided is stored on.
func building(view *state.View, node string) bool {
	return slices.ContainsFunc(view.Builds, func(b *api.Build) bool {
		return b.Phase == api.BuildRunning && b.Node == node
	})
}

func (s *Server) blobFailure(ctx context.Context, err error) *failure {
	var full *imagestore.NoSpaceError
	switch {
	case errors.Is(err, image.ErrDigest):
		return fail(codeDigest, "%v; it was not stored, send it again", err)
	case errors.As(err, &full), errors.Is(err, syscall.ENOSPC):
		return fail(codeNoSpace, "%v", err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fail(codeMalformed, "the content broke off; send it again")
	}
	return s.asFailure(ctx, err)
}

// upload reads a request's body as long as something comes.
type upload struct {
	body io.Reader
	rc   *http.ResponseController
}

func (u upload) Read(p []byte) (int, error) {
	_ = u.rc.SetReadDeadline(time.Now().Add(blobStall)) // a connection without deadlines has none to miss
	return u.body.Read(p)
}
