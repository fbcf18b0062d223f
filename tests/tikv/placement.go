package main

import (
	"context"

	"github.com/pingcap/kvproto/pkg/metapb"
	"github.com/pingcap/kvproto/pkg/pdpb"
	"github.com/pingcap/tidb/store/mockstore/unistore/tikv"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// The placement driver. Its address and that of the store are the address to which the client has sent its request,
// so that a client behind a proxy sends everything through the proxy.
type placement struct {
	pdpb.UnimplementedPDServer
	regions *tikv.MockRegionManager
	control *control
}

// The address to which a client has sent a request.
func address(ctx context.Context) string {
	values, _ := metadata.FromIncomingContext(ctx)
	if found := values.Get(":authority"); len(found) > 0 {
		return found[0]
	}
	return ""
}

func header() *pdpb.ResponseHeader {
	return &pdpb.ResponseHeader{ClusterId: clusterID}
}

func (p *placement) GetMembers(ctx context.Context, _ *pdpb.GetMembersRequest) (*pdpb.GetMembersResponse, error) {
	member := &pdpb.Member{Name: "pd", MemberId: 1, ClientUrls: []string{"http://" + address(ctx)}}
	members := []*pdpb.Member{member}
	return &pdpb.GetMembersResponse{Header: header(), Members: members, Leader: member, EtcdLeader: member}, nil
}

// Tso answers each request with consecutive timestamps, of which it names the last.
func (p *placement) Tso(stream pdpb.PD_TsoServer) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		p.control.add("Timestamps", int(request.Count))
		answer := &pdpb.TsoResponse{Header: header(), Count: request.Count, Timestamp: consecutive(request.Count)}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

// Takes timestamps from the source that the store also uses for one-phase commits, until the last `count` of them are
// consecutive.
func consecutive(count uint32) *pdpb.Timestamp {
	physical, logical := tikv.GetTS()
	for taken := uint32(1); taken < count; taken++ {
		before, last := physical, logical
		physical, logical = tikv.GetTS()
		if physical != before || logical != last+1 {
			taken = 0
		}
	}
	return &pdpb.Timestamp{Physical: physical, Logical: logical}
}

func (p *placement) GetRegion(_ context.Context, r *pdpb.GetRegionRequest) (*pdpb.GetRegionResponse, error) {
	region, leader, _ := p.regions.GetRegionByKey(r.RegionKey)
	return &pdpb.GetRegionResponse{Header: header(), Region: region, Leader: leader}, nil
}

func (p *placement) GetPrevRegion(_ context.Context, r *pdpb.GetRegionRequest) (*pdpb.GetRegionResponse, error) {
	region, leader := p.regions.GetRegionByEndKey(r.RegionKey)
	return &pdpb.GetRegionResponse{Header: header(), Region: region, Leader: leader}, nil
}

func (p *placement) GetRegionByID(_ context.Context, r *pdpb.GetRegionByIDRequest) (*pdpb.GetRegionResponse, error) {
	for _, region := range p.control.allRegions() {
		if region.Id == r.RegionId {
			return &pdpb.GetRegionResponse{Header: header(), Region: region, Leader: region.Peers[0]}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "there is no region %d", r.RegionId)
}

func (p *placement) store(ctx context.Context) *metapb.Store {
	return &metapb.Store{Id: p.control.allRegions()[0].Peers[0].StoreId, Address: address(ctx), Version: "6.5.0"}
}

func (p *placement) GetStore(ctx context.Context, _ *pdpb.GetStoreRequest) (*pdpb.GetStoreResponse, error) {
	return &pdpb.GetStoreResponse{Header: header(), Store: p.store(ctx)}, nil
}

func (p *placement) GetAllStores(ctx context.Context, _ *pdpb.GetAllStoresRequest) (*pdpb.GetAllStoresResponse, error) {
	return &pdpb.GetAllStoresResponse{Header: header(), Stores: []*metapb.Store{p.store(ctx)}}, nil
}

func (p *placement) UpdateGCSafePoint(_ context.Context, r *pdpb.UpdateGCSafePointRequest) (*pdpb.UpdateGCSafePointResponse, error) {
	return &pdpb.UpdateGCSafePointResponse{Header: header(), NewSafePoint: r.SafePoint}, nil
}
