// The device without its operators: memory, guard, streams, events, hooks and random generators.
//
// simdev runs on the CPU, at once and in order. Its memory is host memory, so a CPU kernel can work on a device tensor
// without a copy; only the type of the device keeps the two apart, as PyTorch does for every accelerator.

#include "simdev.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <set>

namespace simdev {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

Device the_device() {
  return Device(kDevice, 0);
}

// ---- memory ----

std::mutex statistics_lock;
c10::CachingDeviceAllocator::DeviceStats statistics;

// The statistics that torch.accelerator shows; there is no cache, so what is reserved is what is allocated.
template <typename Change>
void each_statistic(Change change) {
  const std::lock_guard<std::mutex> hold(statistics_lock);
  for (auto* figures : {&statistics.allocated_bytes, &statistics.reserved_bytes, &statistics.active_bytes,
                        &statistics.requested_bytes}) {
    change((*figures)[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)]);
  }
}

struct Block {
  c10::DataPtr data;
  c10::Storage owner; // of adopted memory
  size_t bytes;

  Block(c10::DataPtr data_, c10::Storage owner_, size_t bytes_)
      : data(std::move(data_)), owner(std::move(owner_)), bytes(bytes_) {
    each_statistic([this](auto& figure) { figure.increase(bytes); });
  }
  ~Block() {
    each_statistic([this](auto& figure) { figure.decrease(bytes); });
  }
};

void free_block(void* block) {
  delete static_cast<Block*>(block);
}

void free_storage(void* storage) {
  delete static_cast<c10::Storage*>(storage);
}

struct Memory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto* block = new Block(c10::GetCPUAllocator()->allocate(bytes), {}, bytes);
    return {block->data.get(), block, &free_block, the_device()};
  }
  void copy_data(void* destination, const void* source, size_t count) const override {
    std::memcpy(destination, source, count);
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr& /*data*/, Stream /*stream*/) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex index) override {
    check_index(index);
    const std::lock_guard<std::mutex> hold(statistics_lock);
    return statistics;
  }
  void resetAccumulatedStats(DeviceIndex index) override {
    check_index(index);
    each_statistic([](auto& figure) { figure.reset_accumulated(); });
  }
  void resetPeakStats(DeviceIndex index) override {
    check_index(index);
    each_statistic([](auto& figure) { figure.reset_peak(); });
  }
};

Memory memory;

// Host memory that is marked as pinned; copies from it are no faster here.
struct Pinned final : c10::Allocator {
  std::mutex lock;
  std::set<const void*> pointers;

  c10::DataPtr allocate(size_t bytes) override {
    auto data = c10::GetCPUAllocator()->allocate(bytes);
    void* pointer = data.get();
    const std::lock_guard<std::mutex> hold(lock);
    pointers.insert(pointer);
    return {pointer, new c10::DataPtr(std::move(data)), &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }
  void copy_data(void* destination, const void* source, size_t count) const override {
    std::memcpy(destination, source, count);
  }
  bool has(const void* pointer) {
    const std::lock_guard<std::mutex> hold(lock);
    return pointers.count(pointer) != 0;
  }
  static void release(void* context);
};

Pinned pinned;

void Pinned::release(void* context) {
  auto* data = static_cast<c10::DataPtr*>(context);
  {
    const std::lock_guard<std::mutex> hold(pinned.lock);
    pinned.pointers.erase(data->get());
  }
  delete data;
}

// ---- random numbers ----

// Draws what a CPU generator with the same seed draws, from a state of its own.
struct Generator final : c10::GeneratorImpl {
  at::Generator host = at::detail::createCPUGenerator();

  Generator() : GeneratorImpl(the_device(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t seed) override {
    host.set_current_seed(seed);
  }
  void set_offset(uint64_t offset) override {
    host.set_offset(offset);
  }
  uint64_t get_offset() const override {
    return host.get_offset();
  }
  uint64_t current_seed() const override {
    return host.current_seed();
  }
  uint64_t seed() override {
    return host.seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    host.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host.unsafeGetGeneratorImpl()->get_state();
  }
  Generator* clone_impl() const override {
    auto* copy = new Generator();
    copy->host = host.clone();
    return copy;
  }
};

// ---- guard, streams and events ----

using Clock = std::chrono::steady_clock;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kDevice;
  }
  Device exchangeDevice(Device device) const override {
    check_index(device.index());
    return the_device();
  }
  Device getDevice() const override {
    return the_device();
  }
  void setDevice(Device device) const override {
    check_index(device.index());
  }
  void uncheckedSetDevice(Device /*device*/) const noexcept override {}
  Stream getStream(Device /*device*/) const override {
    return Stream(Stream::DEFAULT, the_device());
  }
  Stream getDefaultStream(Device device) const override {
    return getStream(device);
  }
  Stream getStreamFromGlobalPool(Device device, bool /*priority*/) const override {
    return getStream(device);
  }
  Stream getNewStream(Device device, int /*priority*/) const override {
    return getStream(device);
  }
  Stream exchangeStream(Stream stream) const override {
    return getStream(stream.device());
  }
  DeviceIndex deviceCount() const noexcept override {
    return 1;
  }
  c10::DeviceCapability getDeviceCapability(Device /*device*/) const override {
    return {};
  }
  bool queryStream(const Stream& /*stream*/) const override {
    return true;
  }
  void synchronizeStream(const Stream& /*stream*/) const override {}
  void synchronizeDevice(const DeviceIndex index) const override {
    check_index(index);
  }

  // All work is done when a call returns, so an event is the time at which it was recorded.
  void record(void** event, const Stream& /*stream*/, const DeviceIndex /*index*/, const c10::EventFlag /*flag*/)
      const override {
    if (*event == nullptr) {
      *event = new Clock::time_point();
    }
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void block(void* /*event*/, const Stream& /*stream*/) const override {}
  bool queryEvent(void* /*event*/) const override {
    return true;
  }
  void synchronizeEvent(void* /*event*/) const override {}
  void destroyEvent(void* event, const DeviceIndex /*index*/) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  double elapsedTime(void* first, void* second, const DeviceIndex /*index*/) const override {
    const auto elapsed = *static_cast<Clock::time_point*>(second) - *static_cast<Clock::time_point*>(first);
    return std::chrono::duration<double, std::milli>(elapsed).count();
  }
};

// ---- hooks ----

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(DeviceIndex /*index*/) const override {
    return true;
  }
  void init() const override {}
  DeviceIndex deviceCount() const override {
    return 1;
  }
  void setCurrentDevice(DeviceIndex index) const override {
    check_index(index);
  }
  DeviceIndex getCurrentDevice() const override {
    return 0;
  }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    check_index(index);
    return 0;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    check_index(index);
    return 0;
  }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    check_index(index);
    return default_generator();
  }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    check_index(index);
    return at::make_generator<Generator>();
  }
  Device getDeviceFromPtr(void* /*data*/) const override {
    return the_device();
  }
  bool isPinnedPtr(const void* data) const override {
    return pinned.has(data);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned;
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto data = memory.allocate(bytes);
    std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &memory)
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)
const bool hooks_are_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

} // namespace

void check_index(DeviceIndex index) {
  TORCH_CHECK(index == 0 || index == -1, "simdev has one device, number 0, not ", static_cast<int>(index));
}

c10::Allocator* allocator() {
  return &memory;
}

c10::DataPtr adopt(c10::Storage host) {
  auto* data = host.mutable_data();
  const auto bytes = host.nbytes();
  return {data, new Block({}, std::move(host), bytes), &free_block, the_device()};
}

c10::DataPtr lend(c10::Storage device) {
  auto* data = device.mutable_data();
  return {data, new c10::Storage(std::move(device)), &free_storage, c10::Device(c10::kCPU)};
}

const at::Generator& default_generator() {
  static const auto generator = at::make_generator<Generator>();
  return generator;
}

at::Generator host_generator(const at::Generator& generator) {
  return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->host;
}

} // namespace simdev
