// The device's operators: every one is the CPU kernel, run on the device's own memory without a copy.
//
// So shapes, strides, memory formats, views and writes in place are those of the CPU kernel, and a device without a
// fault returns the CPU's results bit for bit. Faults are kernels that sortlib.simdev registers from Python in front.

#include "simdev.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/library.h>

#include <array>
#include <string_view>
#include <vector>

namespace simdev {
namespace {

using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

bool is_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kDevice;
}

c10::Storage new_storage(c10::DataPtr data, size_t bytes, c10::Allocator* owner) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), owner, true);
}

// A tensor of the same form on another storage.
at::Tensor same_form(const at::Tensor& tensor, c10::Storage storage, c10::DispatchKey key) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), tensor.dtype());
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  impl->_set_conj(tensor.is_conj());
  impl->_set_neg(tensor.is_neg());
  return result;
}

// Operators whose tensor arguments may lie on different devices, by their own meaning.
bool mixes_devices(std::string_view name) {
  static const std::array<std::string_view, 7> names = {
      "aten::copy_", "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_",
      "aten::_unsafe_index", "aten::_pack_padded_sequence"};
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The device's arguments of one call as CPU tensors over the same memory, and the way back.
class Loan {
 public:
  IValue host(const IValue& value) {
    if (value.isTensor()) {
      return host(value.toTensor());
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        list.push_back(host(tensor));
      }
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional<at::Tensor>(host(*tensor)) : std::nullopt);
      }
      return list;
    }
    if (value.isStorage() && value.toStorage().device_type() == kDevice) {
      return host(value.toStorage());
    }
    if (value.isDevice() && value.toDevice().type() == kDevice) {
      check_index(value.toDevice().index());
      return c10::Device(c10::kCPU);
    }
    if (value.isGenerator() && value.toGenerator().defined() && value.toGenerator().device().type() == kDevice) {
      return host_generator(value.toGenerator());
    }
    return value;
  }

  IValue device(const IValue& value) {
    if (value.isTensor()) {
      return device(value.toTensor());
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        list.push_back(device(tensor));
      }
      return list;
    }
    return value;
  }

  // What the kernel changed of its arguments' form (resize_, set_, out=) is changed on the device's side too.
  void settle() {
    for (auto& [device, host] : storages_) {
      if (host.data() != device.data() || host.nbytes() != device.nbytes()) {
        device.unsafeGetStorageImpl()->set_data_ptr_noswap(adopt(host));
        device.unsafeGetStorageImpl()->set_nbytes(host.nbytes());
      }
    }
    for (auto& [device, host] : tensors_) {
      auto* mine = device.unsafeGetTensorImpl();
      if (auto storage = device_storage(host.storage()); !storage.is_alias_of(mine->storage())) {
        mine->set_storage_keep_dtype(std::move(storage));
      }
      if (device.sizes() != host.sizes() || device.strides() != host.strides() ||
          device.storage_offset() != host.storage_offset()) {
        mine->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
      }
    }
  }

  void check_devices(const OperatorHandle& op) const {
    TORCH_CHECK(tensors_.empty() || foreign_ == nullptr || mixes_devices(op.operator_name().name),
                "Expected all tensors to be on the same device, but found at least two devices, simdev:0 and cpu! "
                "(when calling ", op.operator_name(), ")");
  }

 private:
  at::Tensor host(const at::Tensor& tensor) {
    if (!is_device(tensor)) {
      if (tensor.defined() && tensor.dim() > 0) { // numbers may come from the CPU
        foreign_ = tensor.unsafeGetTensorImpl();
      }
      if (tensor.defined()) {
        others_.push_back(tensor);
      }
      return tensor;
    }
    TORCH_CHECK(tensor.layout() == c10::kStrided && tensor.has_storage(), "simdev has dense tensors only");
    for (auto& [device, host] : tensors_) {
      if (device.is_same(tensor)) {
        return host;
      }
    }
    auto lent = same_form(tensor, host(tensor.storage()), c10::DispatchKey::CPU);
    tensors_.emplace_back(tensor, lent);
    return lent;
  }

  c10::Storage host(const c10::Storage& storage) {
    for (auto& [device, host] : storages_) {
      if (device.is_alias_of(storage)) {
        return host;
      }
    }
    storages_.emplace_back(storage, new_storage(lend(storage), storage.nbytes(), c10::GetCPUAllocator()));
    return storages_.back().second;
  }

  at::Tensor device(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device().type() != c10::kCPU) {
      return tensor;
    }
    for (auto& [device, host] : tensors_) {
      if (host.is_same(tensor)) {
        return device;
      }
    }
    for (auto& other : others_) {
      if (other.is_same(tensor)) {
        return tensor;
      }
    }
    TORCH_CHECK(tensor.layout() == c10::kStrided && tensor.has_storage(), "simdev has dense tensors only");
    return same_form(tensor, device_storage(tensor.storage()), c10::DispatchKey::PrivateUse1);
  }

  c10::Storage device_storage(const c10::Storage& storage) {
    for (auto& [device, host] : storages_) {
      if (host.is_alias_of(storage)) {
        return device;
      }
    }
    storages_.emplace_back(new_storage(adopt(storage), storage.nbytes(), allocator()), storage);
    return storages_.back().first;
  }

  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
  std::vector<at::Tensor> others_;
  const c10::TensorImpl* foreign_ = nullptr;
};

// Within it, kernels that draw from the CPU's default generator draw from the device's.
class DeviceRandom {
 public:
  DeviceRandom() {
    exchange();
  }
  ~DeviceRandom() {
    exchange();
  }
  DeviceRandom(const DeviceRandom&) = delete;
  DeviceRandom& operator=(const DeviceRandom&) = delete;

  static void exchange() {
    auto& cpu = *at::detail::getDefaultCPUGenerator().get<at::CPUGeneratorImpl>();
    const auto host = host_generator(default_generator());
    auto& mine = *host.get<at::CPUGeneratorImpl>();
    const std::lock_guard<std::mutex> hold(cpu.mutex_);
    const auto engine = cpu.engine();
    cpu.set_engine(mine.engine());
    mine.set_engine(engine);
    const auto single = cpu.next_float_normal_sample();
    cpu.set_next_float_normal_sample(mine.next_float_normal_sample());
    mine.set_next_float_normal_sample(single);
    const auto wide = cpu.next_double_normal_sample();
    cpu.set_next_double_normal_sample(mine.next_double_normal_sample());
    mine.set_next_double_normal_sample(wide);
  }
};

void run_on_cpu(const OperatorHandle& op, Stack* stack) {
  const auto arguments = op.schema().arguments().size();
  const auto results = op.schema().returns().size();
  Loan loan;
  for (auto place = stack->end() - static_cast<ptrdiff_t>(arguments); place != stack->end(); ++place) {
    *place = loan.host(*place);
  }
  loan.check_devices(op);
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (op.hasTag(at::Tag::nondeterministic_seeded)) {
      const DeviceRandom random;
      op.callBoxed(stack);
    } else {
      op.callBoxed(stack);
    }
  }
  loan.settle();
  for (size_t number = 0; number < results; ++number) {
    auto& value = *(stack->end() - static_cast<ptrdiff_t>(results - number));
    if (number == 1 && op.operator_name().name == "aten::_pack_padded_sequence") {
      continue; // its batch sizes lie on the CPU on every device
    }
    value = loan.device(value);
  }
}

// ---- operators that PyTorch would take apart ----

// How many operators of ``kWhole`` this thread is taking apart; a fault of one of them must not strike in another.
thread_local int nested = 0;

struct Nested {
  Nested() {
    ++nested;
  }
  ~Nested() {
    --nested;
  }
};

// Composite operators that the device runs as one kernel, as accelerators with fused kernels do. Taken apart, some
// would reach other kernels than on the CPU, and a fault of matmul would show in linear.
constexpr std::array kWhole = {
    "linear", "matmul", "softmax.int", "log_softmax.int", "layer_norm", "rms_norm", "group_norm", "instance_norm",
    "batch_norm", "conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d", "conv3d.padding", "max_pool2d",
    "adaptive_avg_pool2d", "dropout", "scaled_dot_product_attention"};

// Whether somebody follows the call: autograd, a mode or a subclass of Tensor, which need the parts.
bool is_followed(const OperatorHandle& op, const Stack& stack) {
  if (c10::impl::dispatch_mode_enabled()) {
    return true;
  }
  const bool grad = c10::GradMode::is_enabled();
  for (auto place = stack.end() - static_cast<ptrdiff_t>(op.schema().arguments().size()); place != stack.end();
       ++place) {
    if (!place->isTensor() || !place->toTensor().defined()) {
      continue;
    }
    const auto& tensor = place->toTensor();
    if ((grad && tensor.requires_grad()) || tensor._fw_grad(0).defined() ||
        tensor.key_set().has(c10::DispatchKey::Python) || !tensor.has_storage()) {
      return true;
    }
  }
  return false;
}

void run_whole(const OperatorHandle& op, Stack* stack) {
  if (!is_followed(op, *stack)) {
    run_on_cpu(op, stack);
    return;
  }
  const Nested here;
  c10::Dispatcher::singleton().callBoxedForDispatchKey(op, c10::DispatchKey::CompositeImplicitAutograd, stack);
}

// ---- memory ----

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                 std::optional<c10::Device> device, std::optional<bool> pin_memory,
                 std::optional<c10::MemoryFormat> format) {
  check_index(c10::device_or_default(device).index());
  TORCH_CHECK(!layout || *layout == c10::kStrided, "simdev has dense tensors only");
  TORCH_CHECK(!pin_memory.value_or(false), "only CPU memory can be pinned");
  return at::detail::empty_generic(size, allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                         std::optional<bool> pin_memory) {
  check_index(c10::device_or_default(device).index());
  TORCH_CHECK(!layout || *layout == c10::kStrided, "simdev has dense tensors only");
  TORCH_CHECK(!pin_memory.value_or(false), "only CPU memory can be pinned");
  return at::detail::empty_strided_generic(size, stride, allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// ---- autocast ----

// Products run in the lower precision, losses in float32, as the CPU's own autocast has it.
constexpr std::array kLower = {
    "linear", "matmul", "mm", "bmm", "addmm", "addbmm", "baddbmm", "conv1d", "conv1d.padding", "conv2d",
    "conv2d.padding", "conv3d", "conv3d.padding", "conv_transpose1d", "conv_transpose2d.input",
    "conv_transpose3d.input", "prelu", "scaled_dot_product_attention"};
constexpr std::array kFloat = {
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "nll_loss", "nll_loss2d", "nll_loss_nd",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "cosine_embedding_loss", "ctc_loss.Tensor",
    "cdist", "renorm", "prod", "prod.dim_int"};

template <bool lower>
void cast_and_run(const OperatorHandle& op, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::AutocastPrivateUse1);
  const auto dtype = lower ? at::autocast::get_autocast_dtype(kDevice) : at::kFloat;
  for (auto place = stack->end() - static_cast<ptrdiff_t>(op.schema().arguments().size()); place != stack->end();
       ++place) {
    if (place->isTensor() && is_device(place->toTensor())) {
      *place = at::autocast::cached_cast(dtype, place->toTensor(), kDevice);
    }
  }
  op.callBoxed(stack);
}

// ---- for Python ----

at::Tensor host(const at::Tensor& tensor) {
  TORCH_CHECK(is_device(tensor), "not a tensor of simdev");
  return same_form(tensor, new_storage(lend(tensor.storage()), tensor.storage().nbytes(), c10::GetCPUAllocator()),
                   c10::DispatchKey::CPU);
}

at::Tensor adopt_tensor(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().type() == c10::kCPU && tensor.layout() == c10::kStrided, "not a dense CPU tensor");
  return same_form(tensor, new_storage(adopt(tensor.storage()), tensor.storage().nbytes(), allocator()),
                   c10::DispatchKey::PrivateUse1);
}

TORCH_LIBRARY(simdev, m) {
  m.def("host(Tensor tensor) -> Tensor", host);
  m.def("adopt(Tensor tensor) -> Tensor", adopt_tensor);
  m.def("default_generator() -> Generator?", [] { return default_generator(); });
  m.def("exchange_random() -> ()", [] { DeviceRandom::exchange(); });
  m.def("nested() -> bool", [] { return nested > 0; });
  m.def("enter() -> ()", [] { ++nested; });
  m.def("leave() -> ()", [] { --nested; });
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  for (const auto* name : kWhole) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_whole>());
  }
  // These choose a kernel by the device, or copy between devices; the device's answer is the CPU's.
  for (const auto* name : {"copy_", "convolution", "_convolution", "convolution_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
  // Operators for which the CPU has a kernel but PyTorch also has a generic one, which would be taken in its place.
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (name.getNamespace() == "aten" && op && op->hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
        !op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) &&
        !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
      const auto text = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      m.impl(text.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
    }
  }
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  for (const auto* name : kWhole) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_whole>());
  }
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  for (const auto* name : kLower) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&cast_and_run<true>>());
  }
  for (const auto* name : kFloat) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&cast_and_run<false>>());
  }
}

} // namespace
} // namespace simdev
